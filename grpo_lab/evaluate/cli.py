"""The command `python -m grpo_lab.evaluate --model DIR`, which prints the metrics of a model as a JSON object."""

import contextlib
import json
import sys
from pathlib import Path

from grpo_lab.base import Parser, command, shell_line, writable_file
from grpo_lab.base.checks import check_at_least
from grpo_lab.base.files import SETTINGS_FILE
from grpo_lab.base.option import check_value
from grpo_lab.command_options import (
    EVALUATE_OPTION_DEFAULTS,
    TOOL_OPTIONS,
    add_options,
    check_no_code_named,
    read_settings,
)
from grpo_lab.config import SETTINGS
from grpo_lab.task_spec import TASK_OPTION_DEFAULTS, TASK_OPTIONS
from grpo_lab.tasks import SPLITS, TASKS

TOOL_CALL_LIMITS = ("max_tool_calling_iterations", "tool_timeout")  # names of settings
# The defaults of the options that this command takes over from a run.
INHERITABLE_OPTION_DEFAULTS = EVALUATE_OPTION_DEFAULTS | {name: SETTINGS[name].default for name in TOOL_CALL_LIMITS}


@command("grpo_lab.evaluate")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    for name in ("n", "num_generations", "max_completion_length", "batch_size"):
        if (value := getattr(args, name)) is not None:
            check_at_least(name, value, 1)
    for name in ("seed", "temperature"):
        check_value(SETTINGS[name], getattr(args, name))
    with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON object alone
        options = _with_options_of_run(args.model, {name: getattr(args, name) for name in INHERITABLE_OPTION_DEFAULTS})
        # Importing transformers takes seconds, for which --help and the error for a wrong option do not wait.
        from grpo_lab.evaluate.measure import evaluate_model

        result = evaluate_model(args, options)
    line = json.dumps(result, allow_nan=False)
    rounded = json.loads(line, parse_float=lambda digits: round(float(digits), 4))
    print(json.dumps(rounded, indent=2 if sys.stdout.isatty() else None))


def _with_options_of_run(model: str, options: dict) -> dict:
    """Return the options with those that were not typed (None) taken from the run that trained the model.

    A run is known if the model is its folder or one of its checkpoints. Its options are taken unless another task was
    typed, the weights of its rewards unless other rewards were typed, and the limits of its calls only if there are
    tools or an environment.
    """
    typed = {option: value for option, value in options.items() if value is not None}
    folder = Path(model).parent if Path(model).name.startswith("checkpoint-") else Path(model)
    run_settings = read_settings(folder / SETTINGS_FILE) if (folder / SETTINGS_FILE).is_file() else {}
    if typed.get("task") not in (None, run_settings.get("task")):
        run_settings = {}
    if typed.keys() & {"prompt_column", "prompt_template"}:  # either of them replaces both options of the run
        run_settings = run_settings | {"prompt_column": None, "prompt_template": None}
    inherited = {}
    for option, default in INHERITABLE_OPTION_DEFAULTS.items():
        if option not in typed and run_settings.get(option) not in (None, default):
            inherited[option] = run_settings[option]
    check_no_code_named(inherited, folder / SETTINGS_FILE)
    values_with_limits = INHERITABLE_OPTION_DEFAULTS | inherited | typed
    task = TASKS.get(values_with_limits["task"])
    task_replies = task is not None and task.respond is not None
    if not (values_with_limits["tools"] or values_with_limits["environment"] or task_replies):
        inherited = {option: value for option, value in inherited.items() if option not in TOOL_CALL_LIMITS}
    if inherited:
        words = []
        for option, value in inherited.items():
            words += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
        print(f"as in the run of {folder.as_posix()!r}: {shell_line(words)}")
    values = INHERITABLE_OPTION_DEFAULTS | inherited | typed
    reward_funcs = run_settings.get("reward_funcs")
    has_rewards_of_run = typed.get("reward_funcs", reward_funcs) == reward_funcs
    if has_rewards_of_run and run_settings.get("reward_weights") is not None:
        values["reward_weights"] = run_settings["reward_weights"]
    return values


def _parser() -> Parser:
    description = (
        "Sample completions of problems that the training does not see, and count the right ones. "
        f"{', '.join((*TASK_OPTION_DEFAULTS, *TOOL_CALL_LIMITS))} and the weights of the rewards default to those of "
        "the run, if the model is its folder."
    )
    parser = Parser(prog="python -m grpo_lab.evaluate", description=description)
    parser.add_argument("--model", required=True, help='a folder, a hub id, "tiny", "smollm2", "qwen" or "auto"')
    add_options(parser, (TASK_OPTIONS | TOOL_OPTIONS).values())
    add = parser.add_argument
    add("--split", choices=SPLITS, default="test", help='"train" for those of the training (default: %(default)s)')
    add("--n", type=int, help="number of problems (default: 1000, or as many as there are)")
    add("--seed", type=int, default=1, help="chooses the problems and the samples (default: %(default)s)")
    add("--num_generations", type=int, default=4, help="completions per problem (default: %(default)s)")
    add("--max_completion_length", type=int, help="limit in tokens (default: the task's)")
    add("--batch_size", type=int, help="completions at a time (default: 512 of a tiny model, else 64)")
    add("--temperature", type=float, default=1.0, help="of the sampler (default: %(default)s)")
    output_help = "write completions with prompts, rewards and the turns of episodes, one JSON object per line"
    add("--output", type=writable_file, metavar="FILE", help=output_help)
    add_options(parser, [SETTINGS[name] for name in TOOL_CALL_LIMITS])
    return parser
