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
from grpo_lab.memory.choice import MODES, choice
from grpo_lab.memory.planning import PROMPTS, known_shape, longest_prompt, plan
from grpo_lab.models.folders import usable_folder
from grpo_lab.models.shapes import SHAPES, shape_config
from grpo_lab.rewards.task_spec import add_task_option, choose, for_template

SETTINGS = (
    "num_generations", "generation_batch_size", "max_completion_length", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "num_iterations", "beta", "ref_model_device",
    "log_kl",
)  # fmt: skip


@command("grpo_lab.memory")
def main(arguments: list[str] | None = None) -> None:
    asked = vars(_parser().parse_args(arguments))
    model, task, budget = (asked.pop(name) for name in ("model", "task", "budget"))
    precision, prompt_length, device_type = (asked.pop(name) for name in ("precision", "prompt_length", "device_type"))
    check_positive("budget", budget)
    folder = None if model in SHAPES else usable_folder(model, device_type)[0]
    model_config = shape_config(model) if folder is None else _open(AutoConfig, folder)
    parameters = known_shape(model_config).parameters
    spec = choose(task, chat_template=asked.pop("chat_template"), small=parameters < FEW_PARAMETERS)
    chosen = default_settings(parameters, spec.task, device_type, asked)
    config = GRPOConfig(**(asked | chosen))
    if prompt_length is None and folder is not None:
        tokenizer = _open(AutoTokenizer, folder)
        prompt_length = longest_prompt(tokenizer, for_template(spec.rows("train", None, seed=0)[:PROMPTS], tokenizer))
    about = {"prompt_length": spec.task.prompt_length if prompt_length is None else prompt_length}
    heading = f"task {spec.task.name}; {described(chosen, parameters)}"
    on_card = device_type == "cuda" and parameters >= FEW_PARAMETERS
    modes = (precision,) if precision else MODES[True] if on_card else ("fp32",)
    planned = plan(model_config, config, precision=modes[0], device_type=device_type, **about)
    way, lines = choice(planned, int(budget * GIB), modes, asked)
    print(heading, way.plan.table(), "\n".join(lines), sep="\n\n")


def _open(kind, folder):
    return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _parser() -> argparse.ArgumentParser:
    parser = settings_parser("grpo_lab.memory", SETTINGS)
    parser.description = "What a run will take of a card's memory, and what to turn down where it does not fit."
    known = f"{', '.join(SHAPES)}, which are known here; or a folder or a hub id on this machine (default %(default)s)"
    parser.add_argument("--model", default="qwen2", help=known)
    add_task_option(parser)
    small = "(default: the first that fits: fp32-master, bf16; fp32 on a CPU and if small)"
    parser.add_argument("--precision", default=None, choices=PRECISIONS, help=small)
    longest = "tokens of the longest prompt (default: the task's)"
    parser.add_argument("--prompt_length", type=int, default=None, metavar="N", help=longest)
    memory = "memory of the card (default %(default)s)"
    parser.add_argument("--budget", type=float, default=8.0, metavar="GIB", help=memory)
    parser.add_argument("--device_type", default="cuda", choices=("cuda", "cpu"), help="(default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
