"""The checks of a run before its model is loaded, and the report of `--dry_run`, which makes all of them.

The report has the plan of the run, and every problem that the checks find.
"""

import itertools
import sys
from collections.abc import Iterator

import torch
from transformers import AutoModelForCausalLM

from grpo_lab.base.checks import InputError
from grpo_lab.base.commands import user_error_lines
from grpo_lab.base.language import counted
from grpo_lab.config.precision import possible_precisions
from grpo_lab.memory.planning import plan_run_memory
from grpo_lab.models.adapters import lora_config
from grpo_lab.rollout.prompts import prompt_token_ids, render_prompt
from grpo_lab.train.plan import RunPlan
from grpo_lab.train.processes import is_main_process
from grpo_lab.trainer.run.folder import check_folder
from grpo_lab.trainer.run.inputs import RunCheck
from grpo_lab.trainer.run.trackers import check_trackers


def checks_of_plan(plan: RunPlan) -> list[RunCheck]:
    """Return the checks of a run in their order: those of its engine and its folder, its inputs, and its adapter."""
    checks = [
        RunCheck(
            "settings that this engine can train with",
            lambda: plan.engine.check(plan.config, plan.inputs.environment),
        ),
        RunCheck("output folder", lambda: check_output_folder(plan)),
        RunCheck("trackers are installed", lambda: check_tracker_packages(plan)),
        *plan.inputs.checks_without_weights(),
    ]
    lora = plan.engine.lora
    if lora is not None:
        checks.append(RunCheck("layers for LoRA", lambda: check_adapter(plan, lora)))
    return checks


def check_output_folder(plan: RunPlan) -> None:
    """Raise FileExistsError or FileNotFoundError if the run may not use its folder, which only one process writes."""
    if is_main_process():
        check_folder(plan.config)


def check_tracker_packages(plan: RunPlan) -> None:
    """Raise InputPackageError for a tracker that is not installed; only one process reports to trackers."""
    if is_main_process():
        check_trackers(plan.config)


def check_adapter(plan: RunPlan, lora: dict) -> None:
    """Raise InputError if the model does not have the layers that LoRA is to adapt, without reading its weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(plan.inputs.model.config)
    lora_config(model, lora)


NOT_TRIED_IN_DRY_RUN = "loading the weights, sampling, calling a reward function or a tool, logging in to a tracker"


def report_dry_run(plan: RunPlan) -> int:
    """Print the report of a dry run, and return the exit code: 1 if a problem was found, else 0.

    An InputError while the lines of the report are made is reported as a problem, too.
    """
    problems: list[str] = []
    checks = checks_of_plan(plan)
    for check in checks:
        try:
            check.function()
        except (InputError, OSError) as error:
            problems += user_error_lines(error)
    try:
        for line in itertools.chain(plan.description_lines(), dry_run_lines(plan)):
            print(line)
    except InputError as error:
        problems += user_error_lines(error)
    # The check of the prompts and the plan both find a prompt that the chat template refuses; it is reported once.
    problems = list(dict.fromkeys(problems))
    count = f"{len(problems) or 'no'} problem{'s' * (len(problems) != 1)}"
    print(*(f"problem: {line}" for line in problems), f"dry run: {count} found", sep="\n")
    print(f"  checked: {'; '.join(check.description for check in checks)}\n  not tried: {NOT_TRIED_IN_DRY_RUN}")
    return int(bool(problems))


def report_invalid_options(error: InputError) -> int:
    """Print each of the errors because of which there is no plan to check, and return 2, the code of wrong input."""
    print(*(f"problem: {line}" for line in user_error_lines(error)), sep="\n", file=sys.stderr)
    print("dry run: nothing else was checked, since these come first", file=sys.stderr)
    return 2


def dry_run_lines(plan: RunPlan) -> Iterator[str]:
    """Yield lines on a run: its steps and updates, its memory by phase, and the first prompt as the model sees it.

    The plan is fitted to memory as at the start of the run.
    """
    plan, fitting_lines = plan.fitted_to_memory()
    if plan.device.type == "cuda" and fitting_lines:  # they say what the memory is, or why it is not planned
        yield _steps_line(plan)
        yield from fitting_lines
    else:
        yield from fitting_lines
        yield _steps_line(plan)
        yield _planned_memory(plan)
    yield from _prompt_lines(plan)


def _steps_line(plan: RunPlan) -> str:
    """Return a line on the steps of a run, their updates and micro-batches, and the folder."""
    config = plan.config
    return (
        f"{config.max_steps:,} steps of {config.prompts_per_step} problems x {config.num_generations} completions, "
        f"{counted(config.updates_per_step, 'update')} each, {config.microbatch_size} completions at a time; "
        f"to {config.output_dir}"
    )


def _planned_memory(plan: RunPlan) -> str:
    """Return a table of the memory of a run by phase, or a line that says why it is not planned."""
    if plan.reason_memory_not_planned is not None:
        return plan.reason_memory_not_planned
    loading_precision = possible_precisions(plan.device, plan.num_parameters, plan.loading_precision)[-1]
    try:
        memory_plan = plan_run_memory(plan.inputs, loading_precision, plan.device.type)
    except InputError as error:  # the run can train an architecture whose memory cannot be planned
        return f"memory: not planned, since {error}"
    return str(memory_plan)


def _prompt_lines(plan: RunPlan) -> Iterator[str]:
    """Yield the first prompt as the model sees it, with its tools, and its length in tokens."""
    tokenizer, environment = plan.inputs.tokenizer, plan.inputs.environment
    prompt = plan.inputs.dataset[0]["prompt"]
    schemas = None if environment is None else environment.schemas
    has_instances = environment is not None and environment.has_instances
    appended_later = ", to which reset may append" * has_instances
    num_tokens = len(prompt_token_ids(tokenizer, prompt, tools=schemas))
    yield f"the first prompt as the model sees it{appended_later}, {num_tokens} tokens:"
    yield from (f"  {line}" for line in render_prompt(tokenizer, prompt, tools=schemas).splitlines())
