"""`python -m grpo_lab.memory`: plan and advice, from a shell, for the run that `grpo_lab.train` would make."""

import argparse
import sys

from transformers import AutoConfig, AutoTokenizer

from grpo_lab.commands import command
from grpo_lab.commands.checks import check_positive
from grpo_lab.commands.display import GIB
from grpo_lab.config import GRPOConfig
from grpo_lab.config.arguments import settings_parser
from grpo_lab.config.defaults import FEW_PARAMETERS, default_settings, described
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory.advice import advice_lines
from grpo_lab.memory.cards import DIVIDED, cards_table
from grpo_lab.memory.planning import PROMPTS, compare_modes, known_shape, plan
from grpo_lab.models.folders import usable_folder, weight_bytes
from grpo_lab.models.loading import SMALL
from grpo_lab.models.shapes import SHAPES, shape_config
from grpo_lab.rewards.task_spec import TaskSpec, add_task_option, choose, for_template
from grpo_lab.rollout import encode_prompts

SETTINGS = (
    "num_generations", "generation_batch_size", "max_completion_length", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "num_iterations", "beta", "ref_model_device",
    "log_kl",
)  # fmt: skip


@command("grpo_lab.memory")
def main(arguments: list[str] | None = None) -> None:
    given = vars(_parser().parse_args(arguments))
    model, shape, task, budget, cards = (given.pop(name) for name in ("model", "shape", "task", "budget", "cards"))
    check_positive("budget", budget)
    precision, prompt_length, device_type = (given.pop(name) for name in ("precision", "prompt_length", "device_type"))
    folder = None if model is None else usable_folder(model, device_type)[0]
    model_config = shape_config(shape) if folder is None else _open(AutoConfig, folder)
    parameters = known_shape(model_config).parameters
    spec = choose(task, chat_template=given.pop("chat_template"), small=parameters < FEW_PARAMETERS)
    chosen = default_settings(parameters, spec.task, device_type, given)
    config = GRPOConfig(**(given | chosen))
    if prompt_length is None:
        prompt_length = spec.task.prompt_length if folder is None else longest_prompt(folder, spec)
    heading = f"task {spec.task.name}; {described(chosen, parameters)}"
    if cards is not None:
        precision = precision or DIVIDED[0]
        print(f"{heading}; {precision}, FSDP2 (--engine trl --fsdp)\n")
        print(cards_table(model_config, config, cards=cards, prompt_length=prompt_length, precision=precision))
        return
    size = 2 * parameters if folder is None else weight_bytes(folder)  # bytes; such shapes are kept in bf16
    precision = precision or ("bf16" if device_type == "cuda" and size >= SMALL else "fp32")  # as `load_policy` does
    about, budget = {"prompt_length": prompt_length, "device_type": device_type}, int(budget * GIB)
    planned = plan(model_config, config, precision=precision, **about)
    print(heading, planned.table(), sep="\n\n")
    print("", compare_modes(model_config, config, **about), "", *advice_lines(planned, budget), sep="\n")


def longest_prompt(folder, spec: TaskSpec) -> int:
    """Tokens of the longest among the prompts that a run looks at before it begins."""
    tokenizer = _open(AutoTokenizer, folder)
    rows = for_template(spec.rows("train", None, seed=0)[:PROMPTS], tokenizer)
    return encode_prompts(tokenizer, [row["prompt"] for row in rows])[0].shape[1]


def _open(kind, folder):
    return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _parser() -> argparse.ArgumentParser:
    parser = settings_parser("grpo_lab.memory", SETTINGS)
    parser.description = "What a run will take of a card's memory, and what to turn down where it does not fit."
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--shape", default="qwen2-0.5b", choices=SHAPES, help="a known model (default %(default)s)")
    models = '"tiny", "smollm2", a folder or a hub id on this machine, instead of a shape'
    which.add_argument("--model", default=None, help=models)
    add_task_option(parser)
    small = "(default: bf16 on a card, fp32 on a CPU and if small)"
    parser.add_argument("--precision", default=None, choices=PRECISIONS, help=small)
    longest = "tokens of the longest prompt (default: the task's)"
    parser.add_argument("--prompt_length", type=int, default=None, metavar="N", help=longest)
    memory = "memory of the card (default %(default)s)"
    parser.add_argument("--budget", type=float, default=8.0, metavar="GIB", help=memory)
    divided = "a plan for 1, 2, 4, ... N cards that hold the model together, by FSDP2 (--engine trl --fsdp)"
    parser.add_argument("--cards", type=int, default=None, metavar="N", help=divided)
    parser.add_argument("--device_type", default="cuda", choices=("cuda", "cpu"), help="(default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
