"""What the command says of a run, and what each metric means (metrics.md, also in docs/)."""

from pathlib import Path

from grpo_lab.diagnose.logs import Log
from grpo_lab.diagnose.rules import Finding, notes

GLOSSARY = Path(__file__).with_name("metrics.md")


def report(log: Log, found: list[Finding], blind: dict[str, str]) -> str:
    """One line for a healthy run; else what was found, the likeliest cause and the first remedy first.

    found, blind: as `examined` returns them.
    """
    lines = [f"{log.name}: {len(found) or 'no'} finding{'s' * (len(found) != 1)} up to step {log.rows[-1]['step']}"]
    if not found and log.has("reward"):
        lines[0] += f" (reward {ends(log, 'reward')})"
    for number, one in enumerate(found, 1):
        lines += ["", f"{number}. {one.name}, from step {one.step}: {one.evidence}"]
        lines += [f"   may come from: {cause}" for cause in one.causes]
        lines += [f"   try: {remedy}" for remedy in one.remedies]
        lines += [f"   source: {one.source}"]
    lines += [f"note: {note}" for note in notes(log)]
    if blind:
        names = ", ".join(f"{name} ({metric})" for name, metric in blind.items())
        lines.append(f"not looked at, since the log has too little of a metric: {names}")
    return "\n".join(lines)


def ends(log: Log, metric: str) -> str:
    """Such as "0.16 -> 0.94": its mean over the first and over the last quarter of its values."""
    values = log.points(metric)[1]
    part = max(1, len(values) // 4)
    return f"{values[:part].mean():.3g} -> {values[-part:].mean():.3g}" if len(values) else "none"
