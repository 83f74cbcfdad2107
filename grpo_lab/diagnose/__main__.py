"""`python -m grpo_lab.diagnose DIR`: what looks wrong in a run, from a shell. Exit code 1 if anything does."""

import json
import sys
from dataclasses import asdict

from grpo_lab.commands import Parser, command
from grpo_lab.diagnose.logs import read_log
from grpo_lab.diagnose.report import GLOSSARY, report, side_by_side
from grpo_lab.diagnose.rules import examined


@command("grpo_lab.diagnose")
def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.glossary:
        print(GLOSSARY.read_text(encoding="utf-8"), end="")
        return 0
    if not 1 <= len(args.source) <= 2:
        parser.error(f"DIR is given {len(args.source)} times; expected a run, or two")
    logs = [read_log(source) for source in args.source]
    seen = [examined(log) for log in logs]
    if args.json:
        found = {log.name: [asdict(one) for one in ill] for log, (ill, _) in zip(logs, seen, strict=True)}
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        reports = [report(log, *found) for log, found in zip(logs, seen, strict=True)]
        print(*reports, *[side_by_side(logs)] * (len(logs) == 2), sep="\n\n")
    return int(any(ill for ill, _ in seen))


def _parser() -> Parser:
    parser = Parser(prog="python -m grpo_lab.diagnose", description="What looks wrong in the log of a run, and why.")
    parser.add_argument(
        "source", nargs="*", metavar="DIR",
        help="a folder of a run, of TRL or of TensorBoard's events; or metrics.jsonl, trainer_state.json, a CSV of W&B",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--glossary", action="store_true", help="print what each metric means, and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
