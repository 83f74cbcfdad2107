"""The report of `--gpu` as text: of each part what its figures are, a line a measurement, and the limit beside it."""

from grpo_lab.bench.gpu.harness import PARTS, name_of
from grpo_lab.display import GIB, text_table

LEADS = {
    "rollout": "rollout, prompts of {prompt}, responses of {response} tokens; the limit is reading weights and keys at "
    "the speed of a copy",
    "train": "update (score, backward, step) of {rows} x ({prompt} + {completion}) tokens; share of the peak: of the "
    "matrix products that run, those that run twice to save memory included",
    "memory": "peak memory of {steps} steps at {rows} x ({prompt} + {completion}) tokens with gradient checkpointing, "
    "GiB; the plan is `python -m grpo_lab.memory`'s",
    "trl": "whole steps of {rows} x ({prompt} + {completion}) tokens, {per_device} rows at a time; TRL without vLLM; "
    "median seconds a step, after the first",
}
COLUMNS = {
    "rollout": ("tokens/s", "of the limit", "times generate"),
    "train": ("seconds", "tokens/s", "TFLOP/s", "of peak"),
    "memory": ("measured", "reserved", "plan", "plan/measured", "steps"),
    "trl": ("seconds", "times TRL's"),
}


def table(report: dict) -> str:
    """All parts of a report, each under its line."""
    setup = report["setup"]
    head = f"{setup['shape']}, random weights, on {setup['device']}"
    return "\n\n".join([head] + [part_table(part, report[part]) for part in PARTS if part in report])


def part_table(part: str, cells: list[dict]) -> str:
    cells = sorted(cells, key=lambda cell: cell.get("sequences", 0))
    rows = [
        [name_of(cell), *([cell["missing"]] if "missing" in cell else _figures(part, cell, cells))] for cell in cells
    ]
    lines = [LEADS[part].format(**cells[0]), text_table(["", *COLUMNS[part]], rows)]
    found = measured(cells)
    if part == "rollout" and found:
        copied = max(cell["bandwidth"] for cell in found) / 1e9
        lines.append(f"weights and cache in {found[0]['dtype']}; a copy moves {copied:.0f} GB/s (read and written)")
    if part == "train" and found:
        best = max(found, key=lambda cell: cell["matmul_rate"])
        product = f"a {best['matmul_dtype']} product of {best['matmul_width']} squared"
        lines.append(f"peak: {best['matmul_rate'] / 1e12:.4g} TFLOP/s, {product}, measured here")
    return "\n".join(lines)


def measured(cells: list[dict]) -> list[dict]:
    return [cell for cell in cells if "missing" not in cell]


def speed_of(cell: dict) -> float:
    """Tokens a second."""
    return cell["tokens"] / cell["seconds"]


def _figures(part: str, cell: dict, cells: list[dict]) -> list[str]:
    if part == "rollout":
        plain = (one for one in cells if (one["sequences"], one["engine"]) == (cell["sequences"], "generate"))
        share = f"{cell['limit_seconds'] / cell['seconds']:.0%}"
        return [
            f"{speed_of(cell):.0f}",
            share,
            *(f"{one['seconds'] / cell['seconds']:.1f}" for one in measured([*plain])),
        ]
    if part == "train":
        rate = cell["flops"] / cell["seconds"]
        share = f"{rate / cell['matmul_rate']:.0%}"
        return [f"{cell['seconds']:.3f}", f"{speed_of(cell):.0f}", f"{rate / 1e12:.3g}", share]
    if part == "memory":
        peak, planned = cell["peak"] / GIB, cell["planned"] / GIB
        reserved = "-" if cell["reserved"] is None else f"{cell['reserved'] / GIB:.2f}"
        done = f"{cell['steps']} done" if cell["finite"] else "NOT FINITE"
        return [f"{peak:.2f}", reserved, f"{planned:.2f}", f"{planned / peak:.2f}", done]
    theirs = (one for one in measured(cells) if one["trainer"] == "trl")
    return [f"{cell['seconds']:.3f}", *(f"{cell['seconds'] / one['seconds']:.2f}" for one in theirs)]
