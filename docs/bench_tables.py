"""Write the tables of docs/bench.md from the records of `grpo_lab.bench`: `python docs/bench_tables.py`."""

import json
import re
from pathlib import Path
from typing import Any

from grpo_lab.base.display import markdown_table

PAGE = Path(__file__).with_name("bench.md")
RUNS = Path(__file__).parents[1] / "notebooks" / "runs"
MODELS = {"tiny": "tiny", "smollm2": "SmolLM2", "qwen": "Qwen, 0.5B"}
PHASE_LABELS = {"time/rollout": "rollout", "time/logprobs": "log-probabilities", "backward": "backward"}
MEASURES = {
    "time_to_accuracy": "seconds to a mean reward of 0.8",
    "cpu_time_to_accuracy": "CPU seconds to it",
    "seconds_per_step": "seconds per step",
    "cpu_seconds_per_step": "CPU seconds per step",
    "peak_memory": "peak memory of the process",
}


def read_reports() -> dict[str, dict[str, Any]]:
    """Read the bench record of each model, by the model's name on the page.

    The phases of bench_MODEL_phases.json, recorded later and without TRL, replace those of bench_MODEL.json.
    """
    reports = {}
    for model, title in MODELS.items():
        files = (RUNS / f"bench_{model}{kind}.json" for kind in ("", "_phases"))
        parts = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
        if parts:
            reports[title] = parts[0] | {"phases": parts[-1]["phases"]}
    return reports


def least_seconds(phases: dict[str, Any], phase: str) -> float:
    """Return the least seconds of a phase: the larger of FLOPs and bytes, each divided by its measured rate."""
    return max(phases[resource][phase] / phases["rates"][resource] for resource in ("flops", "bytes"))


def phase_rows(reports: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return a row for each phase, with a pair of columns for each model: CPU seconds and their bound."""
    other_phases = [phase for phase in next(iter(reports.values()))["phases"]["seconds"] if phase not in PHASE_LABELS]
    groups = {title: [phase] for phase, title in PHASE_LABELS.items()} | {"optimizer and the rest": other_phases}
    groups["a step"] = [phase for phases in groups.values() for phase in phases]
    rows = []
    for title, names in groups.items():
        cells = [title]
        for report in reports.values():
            phases = report["phases"]
            seconds = sum(phases["seconds"][name] for name in names)
            cells += [f"{seconds:.2f}", f"{sum(least_seconds(phases, name) for name in names):.2f}"]
        rows.append(cells)
    return rows


def ratio(report: dict[str, Any], measure: str) -> str:
    """Return the median ratio of this package to TRL, with the smallest and the largest ratio of a pair of runs."""
    summary = report["summary"].get(measure)
    if not summary or summary["ratio"] is None:
        return ""
    return f"{summary['ratio']:.2f} ({min(summary['ratios']):.2f} to {max(summary['ratios']):.2f})"


def tables() -> dict[str, str]:
    """Return each table by the name in the comment that marks its place in the page."""
    reports = read_reports()
    head = ["CPU seconds", *(cell for title in reports for cell in (title, "its bound"))]
    compared = {title: report for title, report in reports.items() if "summary" in report}
    rows = [[title, *(ratio(report, name) for report in compared.values())] for name, title in MEASURES.items()]
    version = next(iter(compared.values()))["machine"]["trl"].rpartition(".")[0]
    return {
        "phases": markdown_table(head, phase_rows(reports)),
        "ratios": markdown_table([f"grpo_lab / TRL {version}", *compared], rows),
    }


def page(text: str) -> str:
    """Return the page with its tables renewed, each between `<!-- name -->` and `<!-- end -->`."""
    for name, table in tables().items():
        old_table = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(old_table, rf"\g<1>\n{table}\n\g<2>", text, flags=re.DOTALL)
        assert count == 1, name
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
