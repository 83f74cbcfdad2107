"""`python -m grpo_lab.memory`: plan and advice, from a shell; and what a run on a card says before it begins."""

import argparse

import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.config.arguments import add_settings
from grpo_lab.memory import planning as memory
from grpo_lab.models.shapes import SHAPES, shape_config
from grpo_lab.precision import PRECISIONS, precision_of

SETTINGS = (
    "num_generations",
    "generation_batch_size",
    "max_completion_length",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "num_iterations",
    "beta",
    "ref_model_device",
    "cache_implementation",
)
STEP = {"num_generations": 8, "generation_batch_size": 8, "max_completion_length": 512}  # where nothing is said
PROMPTS = 200  # whose length is looked at before a run


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    args = vars(parser.parse_args(arguments))
    budget, model, shape = args.pop("budget"), args.pop("model"), args.pop("shape")
    about = {name: args.pop(name) for name in ("prompt_length", "precision", "device_type")}
    try:
        model_config = _model_config(model) if model else shape_config(shape)
        config = GRPOConfig(**(STEP | args))
        planned = memory.plan(model_config, config, card_memory=int(budget * memory.GIB), **about)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(planned.table())
    print()
    print(memory.compare_modes(model_config, config, prompt_length=about["prompt_length"]))
    print()
    print(*advice_lines(planned, int(budget * memory.GIB)), sep="\n")


def advice_lines(planned: memory.MemoryPlan, budget: int) -> list[str]:
    """Whether it fits, and if not, what to change."""
    sizes = f"{planned.peak / memory.GIB:.2f} GiB of tensors and {memory.RESERVE / memory.GIB:.2f} GiB for CUDA itself"
    if planned.fits(budget):
        return [f"It fits into {budget / memory.GIB:.2f} GiB: {sizes}."]
    changes = planned.advice(budget)
    lines = [f"It does not fit into {budget / memory.GIB:.2f} GiB: {sizes}."]
    lines += [f"  {number}. {change}" for number, change in enumerate(changes, 1)]
    enough = bool(changes) and changes[-1].peak + memory.RESERVE <= budget
    return [*lines, "Then it fits." if enough else "Even then it does not fit: a smaller model, or a larger card."]


def announce(model, tokenizer, rows, config: GRPOConfig) -> None:
    """Before a run on a card: the plan in one line, and a warning with advice where the free memory is less."""
    from grpo_lab.rollout import encode_prompts

    if model.device.type != "cuda":
        return
    some = [rows[index]["prompt"] for index in range(min(len(rows), PROMPTS))]
    free, total = torch.cuda.mem_get_info(model.device)
    planned = memory.plan(
        model.config,
        config,
        prompt_length=encode_prompts(tokenizer, some)[0].shape[1],
        precision=precision_of(model, config).name,
        card_memory=total,
    )
    print(planned.short())
    budget = free + torch.cuda.memory_allocated(model.device)  # the model, which the plan counts too, is there already
    if not planned.fits(budget):
        print("warning:", *advice_lines(planned, budget), sep="\n")


def _model_config(name: str):
    from transformers import AutoConfig

    from grpo_lab.models.folders import find_folder

    return AutoConfig.from_pretrained(find_folder(name)[0], local_files_only=True, trust_remote_code=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grpo_lab.memory",
        description="What a run will take of a card's memory, and what to turn down where it does not fit.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
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
    add_settings(parser, SETTINGS, STEP)
    return parser


def _gib(text: str) -> float:
    size = float(text)
    if not 0 < size < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; it has to be greater than 0")
    return size
