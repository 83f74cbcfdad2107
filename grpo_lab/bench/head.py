"""The log-prob head at Qwen2-0.5B's shape: its cost in time and memory, four ways, as the number of tokens grows."""

import importlib.util
import sys
from collections.abc import Callable

from grpo_lab.bench.process import run_worker
from grpo_lab.display import text_table

WORKER = "grpo_lab.bench.head_worker"
METHODS = ("plain", "chunked", "trl", "liger")
PACKAGE = {"trl": "trl", "liger": "liger_kernel"}  # what a method needs and may not be there
NOT_INSTALLED, OUT_OF_MEMORY = "not installed", "out of memory"
ROW = 512  # tokens of a completion; fewer if there are fewer in all


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def compare(
    tokens: list[int], device: str, dtype: str, repeats: int, threads: int | None, run: Callable[..., dict] = run_worker
) -> dict:
    """Measure every method at every number of tokens, each in a fresh process; what cannot run says why instead."""
    cells, setup = [], {"device": device, "dtype": dtype, "repeats": repeats, "threads": threads}
    for count in tokens:
        for method in METHODS:
            cell = {"method": method, "tokens": count}
            if method in PACKAGE and not is_installed(PACKAGE[method]):
                cell["missing"] = NOT_INSTALLED
            else:
                try:
                    cell |= run(WORKER, cell | setup)
                except MemoryError:
                    cell["missing"] = OUT_OF_MEMORY
            print(f"{count} tokens, {method}: {_show(cell)}", file=sys.stderr)
            cells.append(cell)
    return {"setup": setup, "cells": add_ratios(cells)}


def add_ratios(cells: list[dict]) -> list[dict]:
    """Each measured cell with its time and memory over those of plain at the same number of tokens, if plain ran."""
    plain = {cell["tokens"]: cell for cell in cells if cell["method"] == "plain" and "missing" not in cell}
    for cell in cells:
        if "missing" not in cell and (base := plain.get(cell["tokens"])):
            cell |= {f"{name}_ratio": cell[name] / base[name] for name in ("seconds", "memory")}
    return cells


def table(report: dict) -> str:
    """One line a number of tokens, one column a method."""
    setup, cells = report["setup"], {(cell["tokens"], cell["method"]): cell for cell in report["cells"]}
    threads = "" if setup["threads"] is None else f", {setup['threads']} thread(s)"
    seconds = "seconds" if setup["device"] == "cuda" else "CPU seconds (all threads together)"
    lead = (
        f"log-prob head, forward and backward, {setup['dtype']} on {setup['device']}{threads}: {seconds}, and MiB "
        "beside inputs and gradients; in brackets the ratio to plain"
    )
    rows = [[str(n), *(_show(cells[n, method]) for method in METHODS)] for n in sorted({n for n, _ in cells})]
    return f"{lead}\n{text_table(['tokens', *METHODS], rows)}"


def _show(cell: dict) -> str:
    if "missing" in cell:
        return cell["missing"]
    time, memory = (f" ({cell[key]:.2f})" if key in cell else "" for key in ("seconds_ratio", "memory_ratio"))
    return f"{cell['seconds']:.3f} s{time} {cell['memory'] / 2**20:.0f} MiB{memory}"
