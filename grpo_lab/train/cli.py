"""`python -m grpo_lab.train --model M --task T --output_dir DIR`: from the options to the trained model.

What needs transformers is imported when it is used, since that takes seconds: --help and a wrong option are answered at
once.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from grpo_lab.base import Stopped, command, command_name, shell_line
from grpo_lab.task_spec import OPTIONS_THAT_IMPORT, TASK_OPTION_DEFAULTS, typed_names
from grpo_lab.tasks.data_options import OPTIONS as DATA_OPTIONS
from grpo_lab.train.engines.options import OURS
from grpo_lab.train.engines.processes import only_main_prints
from grpo_lab.train.engines.settings import differences
from grpo_lab.train.options import read_options_and_changes
from grpo_lab.train.plan import RunPlan, make_plan


@command("grpo_lab.train")
def main(arguments: list[str] | None = None) -> int | None:
    """Train as the arguments say, or report what would keep that from going well (`--dry_run`)."""
    options, changes = read_options_and_changes(arguments)
    dry_run = options.pop("dry_run", False)
    with only_main_prints():
        return _run(options, changes, dry_run)


def _run(options: dict, changes: dict[str, tuple], dry_run: bool) -> int | None:
    """Plan the run, check it, load the model and train it.

    changes: the settings of a file that this engine replaces or drops, as `read_options_and_changes` returns them.
    """
    from grpo_lab.models import keep_freed_memory_if_large, one_thread_if_small
    from grpo_lab.train import checks

    checker = checks.CheckRunner(raises=not dry_run)
    plan = make_plan(options, checker)
    print(*plan.description_lines(), sep="\n")
    if plan.engine.name != OURS:
        print(differences(plan.config, changes, plan.engine.vllm))
    checker(checks.check_rewards, plan)
    checker(checks.check_environment, plan)
    if dry_run or not plan.small:  # what is small is loaded at once, and checked by the run
        model_config, tokenizer = plan.model_parts
        checker(checks.check_lengths, plan, model_config, tokenizer)
        checker(checks.check_adapter, plan, model_config)
        if dry_run:
            return checker.report(checks.plan_lines(plan), checks.checked_parts(plan))
        plan, memory_lines = plan.fitted_to_memory()
        if memory_lines:
            print(*memory_lines, sep="\n")
    model, tokenizer = plan.engine.load(options["model"], plan.config, plan.device, plan.small)
    one_thread_if_small(model)
    if plan.engine.name == OURS:
        keep_freed_memory_if_large(model)
    with _naming_the_resuming_command(plan):
        history = plan.engine.run(
            model, tokenizer, plan.rows, plan.task_spec.reward_funcs, plan.config,
            eval_dataset=plan.eval_rows, **plan.environment_arguments,
        )  # fmt: skip
    print(*_closing_lines(history, plan), sep="\n")
    return None


@contextmanager
def _naming_the_resuming_command(plan: RunPlan) -> Iterator[None]:
    """End the message of a run that is stopped with the command that goes on with it, where there is one."""
    try:
        yield
    except Stopped as stop:
        if stop.go_on is None:
            raise
        raise Stopped(stop.message, stop.exit_code, f"Go on with\n  {_resuming_command(plan)}") from None


def _closing_lines(history: list[dict], plan: RunPlan) -> Iterator[str]:
    """Lines after the training: the last step, the folder, and the command that measures the result."""
    from grpo_lab.trainer.reports import rewards_in_words

    task = plan.task_spec.task
    if history:
        last = history[-1]
        yield f"step {last['step']}: {rewards_in_words(last)}"
        if "eval/reward" in last:
            yield rewards_in_words(last, "eval/")
    yield f"saved to {plan.config.output_dir}"
    if task.own is None or task.own.rows_by_split["test"]:
        problems = "held-out" if task.held_out else "the same"
        yield f"measure it on {problems} problems: {_evaluation_command(plan)}"


def _evaluation_command(plan: RunPlan) -> str:
    """The command that evaluates what was trained, as this machine's shell wants it."""
    words = [*command_name("evaluate").split(), "--model", plan.config.output_dir]
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
        value = plan.options.get(name)
        if value is None or value == TASK_OPTION_DEFAULTS.get(name):
            continue
        words += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
    return shell_line(words)


def _resuming_command(plan: RunPlan) -> str:
    """The command that goes on with the run: its folder, and what has to be typed again since it is code."""
    words = [*command_name("train").split(), "--resume_from_checkpoint", plan.config.output_dir]
    for typed_words in typed_names(plan.options).values():
        words += typed_words
    return shell_line(words)
