"""`python -m grpo_lab.train --model M --task T --output_dir DIR`: train a policy on a task of the course or your own.

The command alone: the function that trains is `grpo_lab.trainer.train`. The tiny model on the task "sums" is the
training of notebook 07.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_lab.base import Parser, Stopped, command, command_name, shell_line, writable_folder
from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.config import MAY_CHANGE, SETTINGS, SETTINGS_FILE, GRPOConfig, own_formulas
from grpo_lab.config.arguments import option_actions, option_words, read_settings, settings_parser
from grpo_lab.config.defaults import FEW_PARAMETERS, default_settings, describe_defaults
from grpo_lab.rewards.named import find_rewards
from grpo_lab.rewards.task_spec import (
    OPTIONS_THAT_IMPORT,
    SUMS,
    TASK_OPTION_DEFAULTS,
    TaskSpec,
    add_reward_options,
    add_task_option,
    add_tool_options,
    check_names,
    make_task_spec,
    typed_names,
)
from grpo_lab.tasks import TASKS, Rows
from grpo_lab.tasks.data_options import OPTIONS as DATA_OPTIONS
from grpo_lab.tasks.table import TRAINING_SUMS
from grpo_lab.train.engines.options import OURS, TRL, Engine, add_engine_options, take_engine
from grpo_lab.train.engines.processes import is_main, only_main_prints
from grpo_lab.train.engines.settings import differences, settings_on_trl
from grpo_lab.train.trl_file import EPOCHS, check_translation, count_epochs, is_from_trl, translate

TRAINING_PROBLEMS = TRAINING_SUMS
REWARDS = find_rewards(TASKS[SUMS].reward_funcs)
REWARD_WEIGHTS = list(TASKS[SUMS].reward_weights)
RESUMED_WITH = ("max_steps", *(name for name in MAY_CHANGE if name not in ("output_dir", "resume_from_checkpoint")))
TASK_OPTIONS = (*TASK_OPTION_DEFAULTS, "reward_weights")  # those that `make_task_spec` takes
BATCH_CUT = ("per_device_train_batch_size", "gradient_accumulation_steps")
HELD_OUT = 100  # problems of an evaluation during the run


@command("grpo_lab.train")
def main(arguments: list[str] | None = None) -> int | None:
    options, changes = read_run(arguments)
    with only_main_prints():
        return _run(options, changes)


def _run(options: dict, changes: dict[str, tuple]) -> int | None:
    """Train as the options say, or report what would keep that from going well (`--dry_run`).

    changes: the settings of a file that this engine has otherwise, as `read_run` returns them.
    """
    # Only now, since transformers takes seconds to import: --help and a wrong option are answered at once.
    from grpo_lab.models import one_thread_if_small, pick_device
    from grpo_lab.models.folders import count_parameters
    from grpo_lab.rollout.text_environment import task_environment
    from grpo_lab.rollout.tools.named import load_agent
    from grpo_lab.train import checks
    from grpo_lab.trainer.folder import check_folder
    from grpo_lab.trainer.trackers import check_trackers

    dry_run = options.pop("dry_run", False)
    attempt = checks.Attempts(raises=not dry_run)
    model_name, engine = options["model"], take_engine(options)
    agent = load_agent(options.get("tools"), options.get("environment"))
    device = pick_device()
    parameters = count_parameters(model_name, device.type)
    small = parameters < FEW_PARAMETERS
    task_spec, config, chosen = plan_run(options, parameters, device.type)
    attempt(engine.check, config)
    if is_main():  # the run checks these again
        attempt(check_folder, config)
        attempt(check_trackers, config)
    rows = task_spec.rows("train", None, config.seed)
    config = count_epochs(config, options, len(rows))
    if (environment := task_environment(task_spec.task)) is not None:
        agent["environment"] = environment
    eval_rows = _eval_rows(task_spec, config)
    print(*task_spec.description_lines(rows), describe_defaults(chosen, parameters), sep="\n")
    if engine.name != OURS:
        print(differences(config, changes, engine.vllm))
    attempt(checks.check_rewards, task_spec.functions, rows, eval_rows, "environment_factory" in agent)
    if dry_run or not small:  # what is small is loaded at once, and checked by the run
        parts = _parts_without_weights(model_name, device)
        attempt(checks.check_lengths, *parts, config, rows, eval_rows)
        if engine.lora is not None:
            attempt(checks.check_adapter, parts[0], engine.lora)
        if dry_run:
            precision = engine.precision(config, device, small)
            lines = checks.plan_lines(*parts, rows, config, device, precision, options)
            return attempt.report(lines, checks.checked_parts(engine, rows, eval_rows, bool(agent)))
        config = _fitted(*parts, rows, config, device, engine, options)
    model, tokenizer = engine.load(model_name, config, device, small)
    one_thread_if_small(model)
    with _naming_the_resuming_command(options, config):
        history = engine.run(model, tokenizer, rows, task_spec.functions, config, eval_dataset=eval_rows, **agent)
    print(*_closing_lines(history, task_spec, options, config), sep="\n")
    return None


@contextmanager
def _naming_the_resuming_command(options: dict, config: GRPOConfig) -> Iterator[None]:
    """End the message of a run that is stopped with the command that goes on with it, where there is one."""
    try:
        yield
    except Stopped as stop:
        if stop.go_on is None:
            raise
        raise Stopped(stop.message, stop.exit_code, f"Go on with\n  {_resuming_command(options, config)}") from None


def read_options(arguments: list[str] | None = None) -> dict:
    """The options of a run: those typed, on top of those in a file (`--config`) or of the run to be resumed."""
    return read_run(arguments)[0]


def read_run(arguments: list[str] | None = None) -> tuple[dict, dict[str, tuple]]:
    """The options of a run; and the settings of a file that the chosen engine has otherwise.

    The latter by name: the value in the file, and what takes its place or why it is left out.
    """
    parser = _parser()
    typed = vars(parser.parse_args(arguments))
    file, run_folder = typed.pop("config", None), typed.get("resume_from_checkpoint")
    if isinstance(run_folder, str):
        if file is not None:
            conflict = "is given together with resume_from_checkpoint DIR"
            raise InputError("config", str(file), "expected one of them", found=conflict)
        saved = _options_of_run(run_folder, typed, parser)
    elif file is not None:
        saved = _options_in_file(file / SETTINGS_FILE if file.is_dir() else file, "config", str(file), typed, parser)
        if "generation_batch_size" in typed:  # how the batch of the file was cut up is not how to cut this one
            saved = {name: value for name, value in saved.items() if name not in BATCH_CUT}
    else:
        saved = {}
    for name, replaced in {"max_steps": "num_train_epochs", "num_train_epochs": "max_steps"}.items():
        if name in typed and replaced not in typed:
            saved.pop(replaced, None)
    engine, changes = typed.get("engine") or saved.get("engine"), {}
    if file is not None and engine == TRL:
        saved, changes = settings_on_trl(saved, typed)
    options = {"model": "tiny"} | TASK_OPTION_DEFAULTS | saved | typed
    if "output_dir" not in options and options.get("dry_run"):  # which writes nothing
        options["output_dir"] = "outputs/run"
    if "output_dir" not in options:
        parser.error("the following arguments are required: --output_dir")
    for setting in own_formulas.TABLES:
        if own_formulas.is_own(options.get(setting)):  # typed: a file may not name code
            own_formulas.register(setting, options[setting])
    return options | ({"resume_from_checkpoint": True} if isinstance(run_folder, str) else {}), changes


def _options_of_run(run_folder: str, typed: dict, parser: Parser) -> dict:
    """The options of a run in this folder; raises InputError for a typed option that may not differ from them."""
    saved = _options_in_file(Path(run_folder) / SETTINGS_FILE, "resume_from_checkpoint", run_folder, typed, parser)
    if "model" not in saved:
        origin = f"is {run_folder!r}, begun by a script"
        raise InputError("resume_from_checkpoint", run_folder, "go on from the script", found=origin)
    saved = TASK_OPTION_DEFAULTS | saved | {"output_dir": run_folder}
    for name in typed.keys() - {"model", *RESUMED_WITH, "resume_from_checkpoint"}:
        if typed[name] != saved.get(name):
            expected = f"expected {saved.get(name)!r}, as in the run in {run_folder!r}; what may be given anew is "
            raise InputError(name, typed[name], expected + ", ".join(RESUMED_WITH))
    return saved


def _options_in_file(file: Path, option: str, value: str, typed: dict, parser: Parser) -> dict:
    """The options in a file, to which an option with this value led; it names no code that was not typed."""
    if not file.is_file():
        run_folder = file.parent.parent  # of the run whose checkpoint-12 was named
        is_run = (run_folder / SETTINGS_FILE).is_file()
        hint = f", here {run_folder.as_posix()!r}: it goes on from its newest checkpoint" if is_run else ""
        raise InputFileError(option, value, f"expected a file of settings, or the output_dir of a run{hint}")
    content, names = read_settings(file), option_actions(parser)
    if option == "config" and is_from_trl(content, names):
        translation = translate(content, names, typed)
        print(translation.table(str(file)))
        check_translation(translation, str(file))
        content = translation.options
    words, parser.where = option_words(content, file, parser), f" (in {str(file)!r})"
    options, parser.where = vars(parser.parse_args(words)), ""
    check_names({name: value for name, value in options.items() if name not in typed}, file)
    return options


def plan_run(options: dict, parameters: int, device_type: str) -> tuple[TaskSpec, GRPOConfig, dict]:
    """Task and rewards, the whole configuration for a model of this size, and the settings in it that nobody gave."""
    task_options = {name: options[name] for name in TASK_OPTIONS if name in options}
    settings = {name: value for name, value in options.items() if name in SETTINGS}
    task_spec = make_task_spec(**task_options, small=parameters < FEW_PARAMETERS)
    chosen = default_settings(parameters, task_spec.task, device_type, settings)
    if "num_train_epochs" in options and "max_steps" in options:
        raise InputError("num_train_epochs", options["num_train_epochs"], "leave it out, or max_steps")
    command = {name: value for name, value in options.items() if name not in (*SETTINGS, *EPOCHS)}
    config = GRPOConfig(**(settings | chosen | {"reward_weights": task_spec.weights}), command=command)
    return task_spec, config, chosen


def _parts_without_weights(name: str, device) -> list:
    """The configuration and the tokenizer of a model, before its weights are loaded."""
    from transformers import AutoConfig, AutoTokenizer

    from grpo_lab.models.folders import usable_folder
    from grpo_lab.models.loading import open_part

    folder = usable_folder(name, device.type)[0]
    return [open_part(part, folder) for part in (AutoConfig, AutoTokenizer)]


def _fitted(
    model_config, tokenizer, rows: Rows, config: GRPOConfig, device, engine: Engine, options: dict
) -> GRPOConfig:
    """The configuration, with the precision and the cut of the batch that fit into the memory of a GPU."""
    from grpo_lab.memory import fitted

    if device.type != "cuda":
        return config
    if engine.lora is not None:
        print("memory: not planned, since the plan counts a training of all parameters, which takes more than LoRA")
        return config
    return fitted(model_config, tokenizer, rows, config, device, options) if engine.name == OURS else config


def _eval_rows(task_spec: TaskSpec, config: GRPOConfig) -> Rows | None:
    """The held-out problems, if the run is to evaluate itself."""
    if config.eval_steps is None:
        return None
    if not task_spec.task.held_out:
        print(f"task {task_spec.task.name}: no problem is held out; the evaluations see those of the training")
    return task_spec.rows("test", None, seed=1)[:HELD_OUT]


def _closing_lines(history: list[dict], task_spec: TaskSpec, options: dict, config: GRPOConfig) -> Iterator[str]:
    """Lines after the training: the last step, the folder, and the command that measures the result."""
    from grpo_lab.trainer.reports import in_words

    if history:
        last = history[-1]
        yield f"step {last['step']}: {in_words(last)}"
        if "eval/reward" in last:
            yield in_words(last, "eval/")
    yield f"saved to {config.output_dir}"
    if task_spec.task.own is None or task_spec.task.own.of_split["test"]:
        problems = "held-out" if task_spec.task.held_out else "the same"
        yield f"measure it on {problems} problems: {_evaluation_command(options, config)}"


def _evaluation_command(options: dict, config: GRPOConfig) -> str:
    """The command that evaluates what was trained, as this machine's shell wants it."""
    words = [*command_name("evaluate").split(), "--model", config.output_dir]
    names = (
        "task",
        *DATA_OPTIONS,
        "reward_funcs",
        "system_prompt",
        "max_completion_length",
        "chat_template",
        *OPTIONS_THAT_IMPORT,
    )
    for name in names:
        if (value := options.get(name)) not in (None, TASK_OPTION_DEFAULTS.get(name)):
            words += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
    return shell_line(words)


def _resuming_command(options: dict, config: GRPOConfig) -> str:
    """The command that goes on with the run: its folder, and what has to be typed again since it is code."""
    words = [*command_name("train").split(), "--resume_from_checkpoint", config.output_dir]
    return shell_line(words + [word for typed in typed_names(options).values() for word in typed])


def _parser() -> Parser:
    optional = SETTINGS.keys() - {"output_dir", "resume_from_checkpoint"}
    parser = settings_parser("grpo_lab.train", optional, "--output_dir DIR [--model MODEL] [--task TASK]")
    parser.description = "Train a policy with GRPO. Without --task: on sums, 1 for a right answer, 0 for a wrong one."
    add: Callable = parser.add_argument
    add("--model", metavar="MODEL", help='"tiny", "smollm2", "qwen", "auto", a folder or a hub id (default tiny)')
    about = "folder for checkpoints, metrics.jsonl and the trained model"
    add("--output_dir", type=lambda text: str(writable_folder(text)), metavar="DIR", help=about)
    about = f"take options from a YAML file, or from the {SETTINGS_FILE} in the folder of a run; those typed here win"
    add("--config", type=Path, metavar="FILE", help=about)
    about = (
        f"go on in output_dir; or in DIR, with all that its {SETTINGS_FILE} says, of which these may be given anew: "
    )
    add("--resume_from_checkpoint", type=_true_or_folder, metavar="true|DIR", help=about + ", ".join(RESUMED_WITH))
    dry_run = "say what the run would do, all that is in its way, and the first prompt as the model sees it; and stop"
    about = "how often each problem of the training is sampled, instead of max_steps"
    add("--dry_run", action="store_true", help=dry_run)
    add("--num_train_epochs", type=float, metavar="X", help=about)
    about = "the share of the steps in which the learning rate rises, instead of warmup_steps"
    add("--warmup_ratio", type=float, metavar="X", help=about)
    add_task_option(parser)
    add_reward_options(parser)
    add_tool_options(parser)
    add_engine_options(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # what is not given is absent
    return parser


def _true_or_folder(text: str) -> bool | str:
    return text.lower() == "true" if text.lower() in ("true", "false") else str(Path(text))
