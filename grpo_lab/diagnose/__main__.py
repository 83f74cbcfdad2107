"""`python -m grpo_lab.diagnose DIR` prints the faults that the log of a run shows; exit code 1 if there are any."""

import sys
from pathlib import Path

from grpo_lab.base import Parser, command
from grpo_lab.diagnose.logs import Log, read_log
from grpo_lab.diagnose.rules import Finding, examine, harmless_signs

GLOSSARY = Path(__file__).with_name("metrics.md")  # the meaning of each metric; docs/ contains the same text


@command("grpo_lab.diagnose")
def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m grpo_lab.diagnose", description="What looks wrong in the log of a run, and why.")
    help_text = "a folder of a run, ours or TRL's; or metrics.jsonl, trainer_state.json"
    parser.add_argument("source", nargs="?", metavar="DIR", help=help_text)
    parser.add_argument("--glossary", action="store_true", help="print what each metric means, and stop")
    args = parser.parse_args(arguments)
    if args.glossary:
        print(GLOSSARY.read_text(encoding="utf-8"), end="")
        return 0
    if args.source is None:
        parser.error("DIR is missing")
    log = read_log(args.source)
    findings, missing_metrics = examine(log)
    print(report(log, findings, missing_metrics))
    return int(bool(findings))


def report(log: Log, findings: list[Finding], missing_metrics: dict[str, str]) -> str:
    """Write the report of a run: one line if it is healthy, else each finding with its causes and remedies.

    Args:
        log: The log of the run.
        findings: The findings that `examine` returned.
        missing_metrics: {name of the fault: missing metric} for the faults that could not be checked, from `examine`.
    """
    count = f"{len(findings) or 'no'} finding{'s' * (len(findings) != 1)}"
    lines = [f"{log.name}: {count} up to step {log.rows[-1]['step']}"]
    rewards = log.finite_values("reward")
    if not findings and len(rewards):
        quarter = max(1, len(rewards) // 4)
        lines[0] += f" (reward {rewards[:quarter].mean():.3g} -> {rewards[-quarter:].mean():.3g})"
    for number, finding in enumerate(findings, 1):
        lines += ["", f"{number}. {finding.name}, from step {finding.step}: {finding.evidence}"]
        lines += [f"   may come from: {cause}" for cause in finding.causes]
        lines += [f"   try: {remedy}" for remedy in finding.remedies]
        lines += [f"   source: {finding.source}"]
    lines += [f"note: {note}" for note in harmless_signs(log)]
    if missing_metrics:
        names = ", ".join(f"{name} ({metric})" for name, metric in missing_metrics.items())
        lines.append(f"not checked, because the log has too few values of a metric: {names}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
