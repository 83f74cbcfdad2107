"""`python -m grpo_lab.memory`: plan and advice, from a shell."""

import argparse

from transformers import AutoConfig

from grpo_lab.config import GRPOConfig
from grpo_lab.config.arguments import settings_parser
from grpo_lab.display import GIB
from grpo_lab.memory.advice import advice_lines
from grpo_lab.memory.planning import compare_modes, plan
from grpo_lab.models.folders import find_folder
from grpo_lab.models.shapes import SHAPES, shape_config
from grpo_lab.precision import PRECISIONS

SETTINGS = (
    "num_generations", "generation_batch_size", "max_completion_length", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "num_iterations", "beta", "ref_model_device",
    "cache_implementation",
)  # fmt: skip
STEP = {"num_generations": 8, "generation_batch_size": 8, "max_completion_length": 512}  # where nothing is said


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    args = vars(parser.parse_args(arguments))
    budget, model, shape = args.pop("budget"), args.pop("model"), args.pop("shape")
    about = {name: args.pop(name) for name in ("prompt_length", "precision", "device_type")}
    try:
        model_config = _model_config(model) if model else shape_config(shape)
        config = GRPOConfig(**(STEP | args))
        planned = plan(model_config, config, card_memory=int(budget * GIB), **about)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    about.pop("precision")
    modes, advice = compare_modes(model_config, config, **about), advice_lines(planned, int(budget * GIB))
    print(planned.table(), modes, "\n".join(advice), sep="\n\n")


def _model_config(name: str):
    return AutoConfig.from_pretrained(find_folder(name)[0], local_files_only=True, trust_remote_code=False)


def _parser() -> argparse.ArgumentParser:
    parser = settings_parser("grpo_lab.memory", SETTINGS, **STEP)
    parser.description = "What a run will take of a card's memory, and what to turn down where it does not fit."
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--shape", default="qwen2-0.5b", choices=SHAPES, help="sizes of a known model (default %(default)s)"
    )
    which.add_argument("--model", default=None, help="a folder or a hub id that is on this machine, instead of a shape")
    parser.add_argument("--precision", default="bf16", choices=PRECISIONS, help="(default %(default)s)")
    parser.add_argument(
        "--prompt_length", type=int, default=256, help="tokens of the longest prompt (default %(default)s)"
    )
    parser.add_argument("--budget", type=_gib, default=8.0, help="GiB that the card has (default %(default)s)")
    parser.add_argument("--device_type", default="cuda", choices=("cuda", "cpu"), help="(default %(default)s)")
    return parser


def _gib(text: str) -> float:
    size = float(text)
    if not 0 < size < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; it must be positive")
    return size


if __name__ == "__main__":
    main()
