"""The report of `--dry_run`: the plan of a run, and every problem that its checks find."""

import itertools
import sys
from collections.abc import Iterable, Iterator

from grpo_lab.base.checks import InputError
from grpo_lab.base.commands import user_error_lines
from grpo_lab.base.language import counted
from grpo_lab.config.precision import pick_precision
from grpo_lab.memory.planning import plan_memory
from grpo_lab.rollout.prompting.prompts import encode_prompt, longest_prompt
from grpo_lab.rollout.prompting.templates import render_prompt
from grpo_lab.train.checks import checks_of_plan
from grpo_lab.train.plan import RunPlan

NOT_TRIED = "loading the weights, sampling, calling a reward function or a tool, logging in to a tracker"


def report_dry_run(plan: RunPlan, lines: Iterable[str]) -> int:
    """Print the report of a dry run, and return the exit code: 1 if a problem was found, else 0.

    lines: Lines at the beginning of the report. An InputError while they are made is reported as a problem.
    """
    problems: list[str] = []
    checks = checks_of_plan(plan)
    for check in checks:
        try:
            check.function()
        except (InputError, OSError) as error:
            problems += user_error_lines(error)
    try:
        for line in itertools.chain(lines, dry_run_lines(plan)):
            print(line)
    except InputError as error:
        problems += user_error_lines(error)
    # The check of the prompts and the plan both find a prompt that the chat template refuses; it is reported once.
    problems = list(dict.fromkeys(problems))
    count = f"{len(problems) or 'no'} problem{'s' * (len(problems) != 1)}"
    print(*(f"problem: {line}" for line in problems), f"dry run: {count} found", sep="\n")
    print(f"  checked: {'; '.join(check.description for check in checks)}\n  not tried: {NOT_TRIED}")
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
    precision = plan.precision
    plan, fitting_lines = plan.fitted_to_memory()
    device, rows, config, tokenizer = plan.device, plan.rows, plan.config, plan.tokenizer
    environment = plan.environment
    schemas = None if environment is None else environment.schemas
    is_planned_for_gpu = device.type == "cuda" and bool(fitting_lines)
    if not is_planned_for_gpu:
        yield from fitting_lines
    yield (
        f"{config.max_steps:,} steps of {config.prompts_per_step} problems x {config.num_generations} completions, "
        f"{counted(config.updates_per_step, 'update')} each, {config.microbatch_size} completions at a time; "
        f"to {config.output_dir}"
    )
    if is_planned_for_gpu:
        yield from fitting_lines
    elif plan.reason_memory_not_planned is not None:
        yield plan.reason_memory_not_planned
    else:
        loaded_precision = pick_precision(device, plan.num_parameters, precision)
        try:
            yield str(
                plan_memory(
                    plan.model_config,
                    config,
                    prompt_length=longest_prompt(tokenizer, rows, schemas),
                    precision=loaded_precision.name,
                    device_type=device.type,
                    has_environment=plan.environment is not None,
                )
            )
        except InputError as error:  # the run can train an architecture whose memory cannot be planned
            yield f"memory: not planned, since {error}"
    prompt = rows[0]["prompt"]
    has_instances = environment is not None and environment.has_instances
    appended_later = ", to which reset may append" * has_instances
    tokens = len(encode_prompt(tokenizer, prompt, tools=schemas))
    yield f"the first prompt as the model sees it{appended_later}, {tokens} tokens:"
    yield from (f"  {line}" for line in render_prompt(tokenizer, prompt, tools=schemas).splitlines())
