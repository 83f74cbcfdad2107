"""The report of `--gpu` as text: a table a part, and what its figures are, in a line above it."""

from grpo_lab.bench.gpu import ENGINES, PARTS
from grpo_lab.display import GIB


def table(report: dict) -> str:
    tables = {"rollout": rollout_table, "train": train_table, "memory": memory_table, "trl": trl_table}
    setup = report["setup"]
    head = f"{setup['shape']}, random weights, on {setup['device']}"
    return "\n\n".join([head] + [tables[part](report[part]) for part in PARTS if part in report])


def rollout_table(cells: list[dict]) -> str:
    one, found = cells[0], {(cell["sequences"], cell["engine"]): cell for cell in cells}
    lines = [
        f"rollout, tokens a second: prompts of {one['prompt']}, responses of {one['response']} tokens. In brackets: "
        "times plain generate; share of what reading weights and keys at the speed of a copy allows",
        f"{'sequences':>9}" + "".join(f"{name:>28}" for name in ENGINES) + f"{'limit':>12}",
    ]
    for count in sorted({cell["sequences"] for cell in cells}):
        row = [found[count, engine] for engine in ENGINES]
        limits = [cell["tokens"] / cell["limit_seconds"] for cell in row if "missing" not in cell]
        limit = f"{sum(limits) / len(limits):.0f}" if limits else "-"
        lines.append(f"{count:>9}" + "".join(f"{_rollout(cell, row[-1]):>28}" for cell in row) + f"{limit:>12}")
    if bandwidths := [cell["bandwidth"] for cell in cells if "missing" not in cell]:
        dtype = next(cell["dtype"] for cell in cells if "missing" not in cell)
        lines.append(f"weights and cache in {dtype}; a copy moves {max(bandwidths) / 1e9:.0f} GB/s (read and written)")
    return "\n".join(lines)


def _rollout(cell: dict, generate: dict) -> str:
    if "missing" in cell:
        return cell["missing"]
    ratio = "-" if "missing" in generate else f"{generate['seconds'] / cell['seconds']:.1f}x"
    share = f"{cell['limit_seconds'] / cell['seconds']:.0%}"
    return f"{cell['tokens'] / cell['seconds']:.0f} ({ratio}, {share})"


def train_table(cells: list[dict]) -> str:
    one = cells[0]
    lines = [
        f"update (score, backward, step) of {one['rows']} x ({one['prompt']} + {one['completion']}) tokens. Share of "
        "the peak: 6 N operations a token that runs, plus attention; with what is computed twice in brackets",
        f"{'mode':>26}{'seconds':>9}{'tokens/s':>10}{'TFLOP/s':>10}{'of peak':>14}{'of data sheet':>15}",
    ]
    for cell in cells:
        name = cell["mode"] + (", checkpointing" if cell["checkpointing"] else "")
        lines.append(f"{name:>26}" + (f"{cell['missing']:>20}" if "missing" in cell else _train(cell)))
    if peaks := [(cell["matmul_rate"], cell["matmul_dtype"]) for cell in cells if "missing" not in cell]:
        rate, dtype = max(peaks)
        lines.append(
            f"peak: {rate / 1e12:.4g} TFLOP/s, a {dtype} product of {one['matmul_width']} squared, measured here"
        )
    return "\n".join(lines)


def _train(cell: dict) -> str:
    rate = cell["flops"] / cell["seconds"]
    again = (cell["flops"] + cell["recomputed_flops"]) / cell["seconds"]
    peak = f"{rate / cell['matmul_rate']:.0%} ({again / cell['matmul_rate']:.0%})"
    sheet = "-" if cell["data_sheet_rate"] is None else f"{rate / cell['data_sheet_rate']:.0%}"
    speed = cell["tokens"] / cell["seconds"]
    return f"{cell['seconds']:>9.3f}{speed:>10.0f}{rate / 1e12:>10.3g}{peak:>14}{sheet:>15}"


def memory_table(cells: list[dict]) -> str:
    one = cells[0]
    lines = [
        f"peak memory of {one['steps']} steps at {one['rows']} x ({one['prompt']} + {one['completion']}) tokens with "
        "gradient checkpointing, GiB; the plan is `python -m grpo_lab.memory`'s",
        f"{'mode':>26}{'measured':>10}{'reserved':>10}{'plan':>8}{'plan/measured':>15}",
    ]
    for cell in cells:
        name = cell["mode"] + (f", cap {cell['cap'] / 1e9:g} GB" if cell.get("cap") else "")
        lines.append(f"{name:>26}" + (f"{cell['missing']:>20}" if "missing" in cell else _memory(cell)))
    return "\n".join(lines)


def _memory(cell: dict) -> str:
    reserved = "-" if cell["reserved"] is None else f"{cell['reserved'] / GIB:.2f}"
    ratio = cell["planned"] / cell["peak"]
    verdict = f"   {cell['steps']} steps done" + ("" if cell["finite"] else ", NOT FINITE") if cell.get("cap") else ""
    return f"{cell['peak'] / GIB:>10.2f}{reserved:>10}{cell['planned'] / GIB:>8.2f}{ratio:>15.2f}{verdict}"


def trl_table(cells: list[dict]) -> str:
    one, (ours, trl) = cells[0], cells
    lines = [
        f"whole steps of {one['rows']} x ({one['prompt']} + {one['completion']}) tokens, {one['mode']}, "
        f"{one['per_device']} rows at a time; TRL without vLLM. Median seconds a step, after the first"
    ]
    for cell in cells:
        text = cell.get("missing") or f"{cell['seconds']:.3f}"
        lines.append(f"{'grpo_lab' if cell['trainer'] == 'ours' else 'TRL':>26}{text:>20}")
    if "missing" not in ours and "missing" not in trl:
        lines.append(f"{'grpo_lab/TRL':>26}{ours['seconds'] / trl['seconds']:>20.2f}")
    return "\n".join(lines)
