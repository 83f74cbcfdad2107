"""The log-prob head at Qwen2-0.5B's shape: its cost in time and memory, four ways, as the number of tokens grows."""

import importlib.util
import sys
from collections.abc import Callable

from grpo_lab.bench.process import run_worker

WORKER = "grpo_lab.bench.head_worker"
METHODS = ("plain", "chunked", "trl", "liger")
PACKAGE = {"trl": "trl", "liger": "liger_kernel"}  # what a method needs and may not be there
NOT_INSTALLED = "not installed"


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def compare(
    tokens: list[int],
    device: str = "cpu",
    dtype: str = "fp32",
    repeats: int = 3,
    threads: int | None = None,
    run: Callable[..., dict] = run_worker,
) -> dict:
    """Measure every method at every number of tokens, each in a fresh process; what cannot run says why instead."""
    cells = []
    for count in tokens:
        for method in METHODS:
            cell = {"method": method, "tokens": count}
            spec = cell | {"device": device, "dtype": dtype, "repeats": repeats, "threads": threads}
            if method in PACKAGE and not is_installed(PACKAGE[method]):
                cell["missing"] = NOT_INSTALLED
            else:
                cell |= _measured(run, spec, threads)
            print(f"{count} tokens, {method}: {_show(cell)}", file=sys.stderr)
            cells.append(cell)
    setup = {"device": device, "dtype": dtype, "repeats": repeats, "threads": threads}
    return {"setup": setup, "cells": add_ratios(cells)}


def _measured(run: Callable[..., dict], spec: dict, threads: int | None) -> dict:
    try:
        return run(WORKER, spec, threads)
    except RuntimeError as error:
        # -9: the operating system's answer to a process that wants more memory than there is.
        full = "exit code -9" in str(error) or "out of memory" in str(error) or "not enough memory" in str(error)
        if not full:
            raise
        return {"missing": "out of memory"}


def add_ratios(cells: list[dict]) -> list[dict]:
    """Each measured cell with its time and memory over those of plain at the same number of tokens, if plain ran."""
    plain = {cell["tokens"]: cell for cell in cells if cell["method"] == "plain" and "missing" not in cell}
    return [
        cell | {f"{name}_ratio": cell[name] / plain[cell["tokens"]][name] for name in ("seconds", "memory")}
        if "missing" not in cell and cell["tokens"] in plain
        else cell
        for cell in cells
    ]


def table(report: dict) -> str:
    """One line a number of tokens, one column a method."""
    setup, cells = report["setup"], {(cell["tokens"], cell["method"]): cell for cell in report["cells"]}
    threads = "" if setup["threads"] is None else f", {setup['threads']} thread(s)"
    seconds = "seconds" if setup["device"] == "cuda" else "CPU seconds (all threads together)"
    lines = [
        f"log-prob head, forward and backward, {setup['dtype']} on {setup['device']}{threads}: {seconds}, and MiB "
        "beside inputs and gradients; in brackets the ratio to plain",
        f"{'tokens':>8}" + "".join(f"{method:>34}" for method in METHODS),
    ]
    for count in sorted({cell["tokens"] for cell in report["cells"]}):
        lines.append(f"{count:>8}" + "".join(f"{_show(cells[count, method]):>34}" for method in METHODS))
    return "\n".join(lines)


def _show(cell: dict) -> str:
    if "missing" in cell:
        return cell["missing"]
    time, memory = (f" ({cell[key]:.2f})" if key in cell else "" for key in ("seconds_ratio", "memory_ratio"))
    return f"{cell['seconds']:.3f} s{time} {cell['memory'] / 2**20:.0f} MiB{memory}"
