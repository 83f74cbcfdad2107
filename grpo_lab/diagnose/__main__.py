"""`python -m grpo_lab.diagnose DIR`: what looks wrong in a run, from a shell. Exit code 1 if anything does."""

import sys
from pathlib import Path

from grpo_lab.commands import Parser, command
from grpo_lab.diagnose.logs import Log, read_log
from grpo_lab.diagnose.rules import Finding, examined, notes

GLOSSARY = Path(__file__).with_name("metrics.md")  # what each metric means; also in docs/


@command("grpo_lab.diagnose")
def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m grpo_lab.diagnose", description="What looks wrong in the log of a run, and why.")
    about = "a folder of a run, ours or TRL's; or metrics.jsonl, trainer_state.json"
    parser.add_argument("source", nargs="?", metavar="DIR", help=about)
    parser.add_argument("--glossary", action="store_true", help="print what each metric means, and stop")
    args = parser.parse_args(arguments)
    if args.glossary:
        print(GLOSSARY.read_text(encoding="utf-8"), end="")
        return 0
    if args.source is None:
        parser.error("DIR is missing")
    log = read_log(args.source)
    found, blind = examined(log)
    print(report(log, found, blind))
    return int(bool(found))


def report(log: Log, found: list[Finding], blind: dict[str, str]) -> str:
    """One line for a healthy run; else what was found, the likeliest cause and the first remedy first.

    found, blind: as `examined` returns them.
    """
    lines = [f"{log.name}: {len(found) or 'no'} finding{'s' * (len(found) != 1)} up to step {log.rows[-1]['step']}"]
    rewards = log.points("reward")[1]
    if not found and len(rewards):
        part = max(1, len(rewards) // 4)
        lines[0] += f" (reward {rewards[:part].mean():.3g} -> {rewards[-part:].mean():.3g})"
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


if __name__ == "__main__":
    sys.exit(main())
