"""`python -m grpo_lab.diagnose DIR`: what looks wrong in a run, from a shell. Exit code 1 if anything does."""

import sys

from grpo_lab.commands import Parser, command
from grpo_lab.diagnose.logs import read_log
from grpo_lab.diagnose.report import GLOSSARY, report
from grpo_lab.diagnose.rules import examined


@command("grpo_lab.diagnose")
def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
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


def _parser() -> Parser:
    parser = Parser(prog="python -m grpo_lab.diagnose", description="What looks wrong in the log of a run, and why.")
    about = "a folder of a run, ours or TRL's; or metrics.jsonl, trainer_state.json"
    parser.add_argument("source", nargs="?", metavar="DIR", help=about)
    parser.add_argument("--glossary", action="store_true", help="print what each metric means, and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
