"""`python -m grpo_lab.memory`: plan and advice, from a shell, for the run that `grpo_lab.train` would make."""

import argparse
import sys

from transformers import AutoConfig, AutoTokenizer

from grpo_lab.base import Parser, command
from grpo_lab.base.checks import InputError, check_positive
from grpo_lab.base.display import GIB
from grpo_lab.command_options import COMMAND_OPTIONS, TOOL_OPTIONS, add_options
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.config.defaults import default_settings, describe_defaults
from grpo_lab.config.precision import PRECISIONS, possible_precisions
from grpo_lab.memory.planning import choose_candidate, plan_memory
from grpo_lab.models.folders import find_model
from grpo_lab.models.loading import load_component
from grpo_lab.models.shapes import SHAPES, shape_config, shape_of
from grpo_lab.rollout.environments.factory import load_environment_class, load_tools, make_environment
from grpo_lab.rollout.prompts import MAX_MEASURED_PROMPTS, longest_prompt
from grpo_lab.task_spec import MODEL_TEMPLATE, SUMS, make_task_spec
from grpo_lab.tasks.data_options import DATA_OPTION_NAMES

PLANNED_SETTINGS = (
    "num_generations", "generation_batch_size", "max_completion_length", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "num_iterations", "beta", "ref_model_device",
    "log_kl",
)  # fmt: skip


@command("grpo_lab.memory")
def main(arguments: list[str] | None = None) -> None:
    options = vars(_parser().parse_args(arguments))
    model, task, budget, precision = (options.pop(name) for name in ("model", "task", "budget", "precision"))
    check_positive("budget", budget)
    files = None if model in SHAPES else find_model(model, "cuda")
    model_config = shape_config(model) if files is None else load_component(AutoConfig, files)
    num_parameters = shape_of(model_config).parameters
    for_bundled_model = files is not None and files.is_bundled
    data_options = {name: options.pop(name) for name in DATA_OPTION_NAMES if name in options}
    task_spec = make_task_spec(
        task, chat_template=options.pop("chat_template"), for_bundled_model=for_bundled_model, **data_options
    )
    environment = make_environment(
        task_spec.task,
        tools=load_tools(options.pop("tools", None)),
        environment_factory=load_environment_class(options.pop("environment", None)),
    )
    schemas = None if environment is None else environment.schemas
    defaults = default_settings(num_parameters, task_spec.task, "cuda", options)
    prompt_length = task_spec.task.prompt_length
    if files is not None:
        rows = task_spec.rows("train", None, seed=0)
        prompt_length = longest_prompt(load_component(AutoTokenizer, files), rows, schemas)
    elif schemas:
        expected = "with tools, expected a model on this machine, whose chat template writes them into each prompt"
        raise InputError("model", model, expected)
    precisions = possible_precisions(None, num_parameters, precision)
    config = GRPOConfig(**(options | defaults))
    memory_plan = plan_memory(
        model_config,
        config,
        prompt_length=prompt_length,
        precision=precisions[0],
        has_environment=environment is not None,
    )
    chosen, lines = choose_candidate(memory_plan, int(budget * GIB), precisions, options)
    print(
        f"task {task_spec.task.name}; {describe_defaults(defaults, num_parameters)}",
        chosen,
        "\n".join(lines),
        sep="\n\n",
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m grpo_lab.memory",
        usage="%(prog)s [options]",
        description="What a run will take of a GPU's memory, and what to turn down where it does not fit. The prompts "
        f"count with the longest of the first {MAX_MEASURED_PROMPTS}; a longer one that comes later takes more.",
        argument_default=argparse.SUPPRESS,
    )
    model_help = (
        f"{', '.join(SHAPES)}, which are known here; or a folder or a hub id on this machine (default: %(default)s)"
    )
    parser.add_argument("--model", default="qwen2", help=model_help)
    options = ("task", "chat_template", *TOOL_OPTIONS, *DATA_OPTION_NAMES)
    add_options(parser, [COMMAND_OPTIONS[name] for name in options])
    add_options(parser, [spec for spec in SETTINGS.values() if spec.name in PLANNED_SETTINGS])
    parser.set_defaults(task=SUMS, chat_template=MODEL_TEMPLATE)
    precision_help = "(default: the first that fits: fp32-master, bf16; fp32 if the model is tiny)"
    parser.add_argument("--precision", default=None, choices=PRECISIONS, help=precision_help)
    budget_help = "memory that is free on the GPU (default: %(default)s)"
    parser.add_argument("--budget", type=float, default=8.0, metavar="GIB", help=budget_help)
    return parser


if __name__ == "__main__":
    sys.exit(main())
