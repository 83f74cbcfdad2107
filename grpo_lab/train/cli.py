"""The command `python -m grpo_lab.train --model M --task T --output_dir DIR`: plan a run, check it and train.

Modules that need transformers are imported inside functions, because the import takes seconds. So --help and the error
for a wrong option appear at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo_lab.base import Stopped, command, command_name, shell_line
from grpo_lab.base.checks import InputError
from grpo_lab.command_options import EVALUATE_OPTION_DEFAULTS, options_naming_code
from grpo_lab.tasks.data_options import DATA_OPTION_NAMES
from grpo_lab.train.options import read_options_and_changes
from grpo_lab.train.plan import RunPlan, make_plan
from grpo_lab.train.processes import set_up_process

if TYPE_CHECKING:
    from grpo_lab.train.trl.settings import Difference


@command("grpo_lab.train")
def main(arguments: list[str] | None = None) -> int | None:
    """Train a model as the arguments say; with `--dry_run`, report the plan and its problems instead."""
    # Before the options are read: reading a file for TRL prints, and only one process may print.
    with set_up_process():
        options, changed_settings = read_options_and_changes(arguments)
        is_dry_run = options.pop("dry_run", False)
        from grpo_lab.train.checks import checks_of_plan, report_dry_run, report_invalid_options

        try:
            plan = make_plan(options)
        except InputError as error:
            if is_dry_run and error.combined:
                return report_invalid_options(error)
            raise
        if is_dry_run:
            return report_dry_run(plan, _opening_lines(plan, changed_settings))
        for check in checks_of_plan(plan):
            check.function()
        print(*_opening_lines(plan, changed_settings), sep="\n")
        _train(plan)
    return None


def _train(plan: RunPlan) -> None:
    """Load the model and train it as a checked plan says."""
    from grpo_lab.models import one_thread_if_tiny

    plan, memory_lines = plan.fitted_to_memory()
    if memory_lines:
        print(*memory_lines, sep="\n")
    model, tokenizer = plan.engine.load(plan.options["model"], plan.loading_precision)
    one_thread_if_tiny(model)
    with _naming_the_resuming_command(plan):
        inputs = replace(plan.inputs, model=model, tokenizer=tokenizer)
        history = plan.engine.run(inputs, saved_options=plan.saved_options)
    print(*_closing_lines(history, plan), sep="\n")


def _opening_lines(plan: RunPlan, changed_settings: dict[str, "Difference"]) -> Iterator[str]:
    """Yield the description of the plan, and how its engine differs from our own loop.

    changed_settings: The settings that the engine replaces or drops, as `read_options_and_changes` returns them.
    """
    yield from plan.description_lines()
    yield from plan.engine.difference_lines(plan.config, changed_settings)


@contextmanager
def _naming_the_resuming_command(plan: RunPlan) -> Iterator[None]:
    """Append the command that resumes the run to the message of a Stopped, if the run can be resumed."""
    try:
        yield
    except Stopped as stop:
        if stop.resume_hint is None:
            raise
        raise Stopped(stop.message, stop.exit_code, f"Go on with\n  {_resuming_command(plan)}") from None


def _closing_lines(history: list[dict], plan: RunPlan) -> Iterator[str]:
    """Yield the lines after the training: the last step, the folder, and the command that evaluates the model."""
    from grpo_lab.trainer.run.reports import rewards_in_words

    task = plan.task_spec.task
    if history:
        last = history[-1]
        yield f"step {last['step']}: {rewards_in_words(last)}"
        if "eval/reward" in last:
            yield rewards_in_words(last, "eval/")
    yield f"saved to {plan.config.output_dir}"
    if task.user_data is None or task.user_data.rows("test"):
        problems = "held-out" if task.has_held_out else "the same"
        yield f"measure it on {problems} problems: {_evaluation_command(plan)}"


def _evaluation_command(plan: RunPlan) -> str:
    """Return the command that evaluates the trained model, quoted for this machine's shell."""
    words = [*command_name("evaluate").split(), "--model", str(plan.config.output_dir)]
    first_names = ("task", *DATA_OPTION_NAMES, "reward_funcs", "system_prompt", "max_completion_length")
    for name in dict.fromkeys((*first_names, *EVALUATE_OPTION_DEFAULTS)):
        value = plan.options.get(name)
        if value is None or value == EVALUATE_OPTION_DEFAULTS.get(name):
            continue
        words += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
    return shell_line(words)


def _resuming_command(plan: RunPlan) -> str:
    """Return the command that resumes the run, with the options that have to be typed again because they name code."""
    words = [*command_name("train").split(), "--resume_from_checkpoint", str(plan.config.output_dir)]
    for typed_words in options_naming_code(plan.options).values():
        words += typed_words
    return shell_line(words)
