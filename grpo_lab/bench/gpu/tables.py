"""The report of `--gpu` as text: a table a part, and what its figures are, in a line above it."""

from grpo_lab.bench.gpu.harness import ENGINES, PARTS
from grpo_lab.display import GIB, text_table


def table(report: dict) -> str:
    """All parts of a report, each under its line."""
    tables = {"rollout": rollout_table, "train": train_table, "memory": memory_table, "trl": trl_table}
    setup = report["setup"]
    head = f"{setup['shape']}, random weights, on {setup['device']}"
    return "\n\n".join([head] + [tables[part](report[part]) for part in PARTS if part in report])


def measured(cells: list[dict]) -> list[dict]:
    return [cell for cell in cells if "missing" not in cell]


def size_of(cell: dict) -> str:
    """Of an update."""
    return f"{cell['rows']} x ({cell['prompt']} + {cell['completion']}) tokens"


def speed_of(cell: dict) -> float:
    """Tokens a second."""
    return cell["tokens"] / cell["seconds"]


def rollout_table(cells: list[dict]) -> str:
    one, found = cells[0], {(cell["sequences"], cell["engine"]): cell for cell in cells}
    lines = [
        f"rollout, tokens a second: prompts of {one['prompt']}, responses of {one['response']} tokens. In brackets: "
        "times plain generate; share of what reading weights and keys at the speed of a copy allows"
    ]
    rows = []
    for count in sorted({cell["sequences"] for cell in cells}):
        row = [found[count, engine] for engine in ENGINES]
        limits = [cell["tokens"] / cell["limit_seconds"] for cell in measured(row)]
        limit = f"{sum(limits) / len(limits):.0f}" if limits else "-"
        rows.append([str(count), *(_rollout(cell, row[-1]) for cell in row), limit])
    lines.append(text_table(["sequences", *ENGINES, "limit"], rows))
    if cells := measured(cells):
        dtype, bandwidth = cells[0]["dtype"], max(cell["bandwidth"] for cell in cells)
        lines.append(f"weights and cache in {dtype}; a copy moves {bandwidth / 1e9:.0f} GB/s (read and written)")
    return "\n".join(lines)


def _rollout(cell: dict, generate: dict) -> str:
    if "missing" in cell:
        return cell["missing"]
    ratio = "-" if "missing" in generate else f"{generate['seconds'] / cell['seconds']:.1f}x"
    share = f"{cell['limit_seconds'] / cell['seconds']:.0%}"
    return f"{speed_of(cell):.0f} ({ratio}, {share})"


def train_table(cells: list[dict]) -> str:
    lines = [
        f"update (score, backward, step) of {size_of(cells[0])}. Share of the peak: of the matrix products that run, "
        "those that run twice to save memory included"
    ]
    rows = []
    for cell in cells:
        name = cell["mode"] + (", checkpointing" if cell["checkpointing"] else "")
        rows.append([name, *([cell["missing"]] if "missing" in cell else _train(cell))])
    lines.append(text_table(["mode", "seconds", "tokens/s", "TFLOP/s", "of peak"], rows))
    if cells := measured(cells):
        best = max(cells, key=lambda cell: cell["matmul_rate"])
        product = f"a {best['matmul_dtype']} product of {best['matmul_width']} squared"
        lines.append(f"peak: {best['matmul_rate'] / 1e12:.4g} TFLOP/s, {product}, measured here")
    return "\n".join(lines)


def _train(cell: dict) -> list[str]:
    rate = cell["flops"] / cell["seconds"]
    return [
        f"{cell['seconds']:.3f}",
        f"{speed_of(cell):.0f}",
        f"{rate / 1e12:.3g}",
        f"{rate / cell['matmul_rate']:.0%}",
    ]


def memory_table(cells: list[dict]) -> str:
    lead = (
        f"peak memory of {cells[0]['steps']} steps at {size_of(cells[0])} with gradient checkpointing, GiB; the plan "
        "is `python -m grpo_lab.memory`'s"
    )
    rows = []
    for cell in cells:
        name = cell["mode"] + (f", cap {cell['cap'] / 1e9:g} GB" if cell.get("cap") else "")
        rows.append([name, *([cell["missing"]] if "missing" in cell else _memory(cell))])
    return f"{lead}\n{text_table(['mode', 'measured', 'reserved', 'plan', 'plan/measured', ''], rows)}"


def _memory(cell: dict) -> list[str]:
    reserved = "-" if cell["reserved"] is None else f"{cell['reserved'] / GIB:.2f}"
    verdict = f"{cell['steps']} steps done" + ("" if cell["finite"] else ", NOT FINITE") if cell.get("cap") else ""
    peak, planned = cell["peak"] / GIB, cell["planned"] / GIB
    return [f"{peak:.2f}", reserved, f"{planned:.2f}", f"{planned / peak:.2f}", verdict]


def trl_table(cells: list[dict]) -> str:
    one = cells[0]
    lead = (
        f"whole steps of {size_of(one)}, {one['mode']}, {one['per_device']} rows at a time; TRL without vLLM. Median "
        "seconds a step, after the first"
    )
    names = {"ours": "grpo_lab", "trl": "TRL"}
    rows = [[names[cell["trainer"]], cell.get("missing") or f"{cell['seconds']:.3f}"] for cell in cells]
    if len(ours_and_trl := measured(cells)) == 2:
        ours, trl = ours_and_trl
        rows.append(["grpo_lab/TRL", f"{ours['seconds'] / trl['seconds']:.2f}"])
    return f"{lead}\n{text_table(['', 'seconds'], rows)}"
