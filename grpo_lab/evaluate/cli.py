"""The command `python -m grpo_lab.evaluate --model DIR`, which prints the metrics of a model as a JSON object.

Modules that need transformers are imported inside the functions, so that --help and errors in options come at once.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_lab.base import Parser, command, shell_line, writable_file
from grpo_lab.base.checks import check_at_least
from grpo_lab.base.files import SETTINGS_FILE, write_atomically
from grpo_lab.base.option import check_value
from grpo_lab.command_options import (
    EVALUATE_OPTION_DEFAULTS,
    TOOL_OPTIONS,
    add_options,
    check_no_code_named,
    read_settings,
)
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.config.defaults import is_tiny
from grpo_lab.evaluate.measure import evaluation_metrics, sample_records
from grpo_lab.rewards import reward_names
from grpo_lab.task_spec import TASK_OPTION_DEFAULTS, TASK_OPTIONS, TaskSpec, make_task_spec
from grpo_lab.tasks import SPLITS, TASKS, Rows

TURN_LIMITS = ("max_tool_calling_iterations", "tool_timeout")  # settings that limit the calls of tools
# Options that this command takes over from a run, with their defaults.
INHERITABLE_OPTIONS = EVALUATE_OPTION_DEFAULTS | {name: SETTINGS[name].default for name in TURN_LIMITS}


@command("grpo_lab.evaluate")
def main(arguments: list[str] | None = None) -> None:
    options = vars(_parser().parse_args(arguments))
    for name in ("n", "num_generations", "max_completion_length", "batch_size"):
        if options[name] is not None:
            check_at_least(name, options[name], 1)
    for name in ("seed", "temperature"):
        check_value(SETTINGS[name], options[name])
    with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON object alone
        result = _evaluate_model(**options)
    line = json.dumps(result, allow_nan=False)
    rounded = json.loads(line, parse_float=lambda digits: round(float(digits), 4))
    print(json.dumps(rounded, indent=2 if sys.stdout.isatty() else None))


def _evaluate_model(
    *,
    model: str,
    split: str,
    n: int | None,
    seed: int,
    num_generations: int,
    max_completion_length: int | None,
    batch_size: int | None,
    temperature: float,
    output: Path | None,
    **inheritable: Any,
) -> dict:
    """Evaluate a model with the options of the command; return the metrics with task and split.

    Args:
        model: The name of the model, as `load_policy` takes it.
        split: The split of the problems, "train" or "test".
        n: Number of problems; None takes the default number.
        seed: Seed from which problems and completions are drawn.
        num_generations, max_completion_length, batch_size, temperature: As in `evaluate`; None takes the length of the
            task, or the batch size for the size of the model.
        output: The file for the records of the completions; None writes none.
        **inheritable: The options of `INHERITABLE_OPTIONS`; None where they were not typed.
    """
    from grpo_lab.models.folders import count_parameters, is_bundled_model
    from grpo_lab.rollout.environments.factory import load_environment_class, load_tools, make_environment
    from grpo_lab.trainer import evaluation

    has_tiny_model = is_tiny(count_parameters(model))
    options = _with_options_of_run(model, inheritable)
    turn_limits = GRPOConfig(**{name: options.pop(name) for name in TURN_LIMITS})
    tools = load_tools(options.pop("tools"))
    environment_class = load_environment_class(options.pop("environment"))
    task_spec = make_task_spec(**options, for_bundled_model=is_bundled_model(model))
    task = task_spec.task
    environment = make_environment(
        task,
        tools=tools,
        environment_factory=environment_class,
        max_tool_calling_iterations=turn_limits.max_tool_calling_iterations,
        tool_timeout=turn_limits.tool_timeout,
    )
    rows = task_spec.rows(split, n, seed)
    print(*task_spec.description_lines(rows), sep="\n")
    if not task.has_held_out:
        print(f"task {task.name}: no problem is held out; these are the ones used in training")
    max_completion_length = max_completion_length or task.completion_length(has_tiny_model)
    policy, tokenizer = _load_checked(model, task_spec, rows, environment, max_completion_length)
    reward_weights = options.get("reward_weights")
    scored = evaluation.sample_and_reward(
        policy, tokenizer, rows, reward_funcs=task_spec.reward_funcs, num_generations=num_generations,
        max_completion_length=max_completion_length, temperature=temperature, seed=seed,
        batch_size=batch_size or (512 if has_tiny_model else 64), disable_tqdm=False,
        reward_weights=reward_weights, environment=environment,
    )  # fmt: skip
    metrics = evaluation_metrics(scored, num_generations, has_reward_weights=reward_weights is not None)
    records = sample_records(rows, scored)
    if output is not None:
        write_atomically(output, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        print(f"{len(records):,} completions written to {output.as_posix()}")
    for remark in _remarks(metrics, task_spec):
        print(remark)
    return {"task": task.name, "split": split} | metrics


def _load_checked(model: str, task_spec: TaskSpec, rows: Rows, environment, max_completion_length: int) -> tuple:
    """Load a model and its tokenizer, after checking that they, the rewards and the environment work with the rows.

    Args:
        model: The name of the model, as `load_policy` takes it.
        task_spec: The task with its rewards.
        rows: The problems.
        environment: The environment that replies to the policy; None if there is none.
        max_completion_length: Maximum number of tokens of a completion.
    """
    from grpo_lab.models import load_policy, one_thread_if_tiny
    from grpo_lab.models.loading import ModelWithoutWeights, load_config_and_tokenizer
    from grpo_lab.rollout.prompts import end_token_ids, find_prompt_quirks
    from grpo_lab.trainer.run.inputs import check_reward_arguments

    has_instances = environment is not None and environment.has_instances
    check_reward_arguments(task_spec.reward_funcs, rows[0], has_instances)
    if environment is not None:
        model_config, tokenizer = load_config_and_tokenizer(model)
        environment.check(ModelWithoutWeights(model_config), tokenizer, rows, max_completion_length, "task")
    policy, tokenizer = load_policy(model)
    one_thread_if_tiny(policy)
    for line in find_prompt_quirks(
        tokenizer, (row["prompt"] for row in rows), end_token_ids(policy, tokenizer)
    ).values():
        print(f"prompts: {line}")
    return policy, tokenizer


def _remarks(metrics: dict, task_spec: TaskSpec) -> Iterator[str]:
    """Yield remarks on an evaluation, if training on its rows would have no gradient or there is no accuracy."""
    if metrics["frac_reward_zero_std"] == 1:
        yield (
            "all rewards were equal within each problem, so training on them would have no gradient; take problems "
            "with right and wrong completions, or more of each (num_generations); --output shows them"
        )
    if metrics["accuracy"] is None:
        first = reward_names(task_spec.reward_funcs)[0]
        reason = f"{first} gives no rewards, or values other than 0 to 1 (-1 for wrong)"
        yield f"there is no accuracy: {reason}; see rewards/{first}/mean"


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
    for option, default in INHERITABLE_OPTIONS.items():
        if option not in typed and run_settings.get(option) not in (None, default):
            inherited[option] = run_settings[option]
    check_no_code_named(inherited, folder / SETTINGS_FILE)
    if not _has_environment(INHERITABLE_OPTIONS | inherited | typed):
        inherited = {option: value for option, value in inherited.items() if option not in TURN_LIMITS}
    if inherited:
        words = []
        for option, value in inherited.items():
            words += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
        print(f"as in the run of {folder.as_posix()!r}: {shell_line(words)}")
    completed = INHERITABLE_OPTIONS | inherited | typed
    reward_funcs = run_settings.get("reward_funcs")
    has_rewards_of_run = typed.get("reward_funcs", reward_funcs) == reward_funcs
    if has_rewards_of_run and run_settings.get("reward_weights") is not None:
        completed["reward_weights"] = run_settings["reward_weights"]
    return completed


def _has_environment(options: dict) -> bool:
    """Return True if tools, an environment or a task that replies are among the options."""
    task = TASKS.get(options["task"])
    return bool(options["tools"] or options["environment"] or (task is not None and task.respond is not None))


def _parser() -> Parser:
    description = (
        "Sample completions of problems that the training does not see, and count the right ones. "
        f"{', '.join((*TASK_OPTION_DEFAULTS, *TURN_LIMITS))} and the weights of the rewards default to those of the "
        "run, if the model is its folder."
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
    add_options(parser, [SETTINGS[name] for name in TURN_LIMITS])
    return parser
