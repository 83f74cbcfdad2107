"""The checks of a run before its model is loaded, and the report of `--dry_run`."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

from grpo_lab.base.checks import InputError
from grpo_lab.base.commands import user_error_line
from grpo_lab.base.language import counted
from grpo_lab.config.precision import pick_precision
from grpo_lab.memory.planning import LORA_NOT_PLANNED, plan_memory
from grpo_lab.models.adapters import lora_config
from grpo_lab.models.without_weights import ModelWithoutWeights
from grpo_lab.rollout.prompting.prompts import encode_prompt, longest_prompt
from grpo_lab.rollout.prompting.templates import render_prompt
from grpo_lab.train.engines.processes import is_main
from grpo_lab.train.plan import RunPlan
from grpo_lab.trainer.folder import check_folder
from grpo_lab.trainer.run_checks import check_evaluation, check_prompts_of_run, check_reward_funcs
from grpo_lab.trainer.trackers import check_trackers
from grpo_lab.trainer.turn_credit import check_turn_advantage

NOT_TRIED = "loading the weights, sampling, calling a reward function or a tool, logging in to a tracker"


class Check(NamedTuple):
    """A check of a run: what it checks, in words, and the function that raises an error for a plan that fails."""

    description: str
    function: Callable[[RunPlan], None]


def run_checks(plan: RunPlan, problems: list[str] | None = None) -> list[str]:
    """Run all checks of a run before its weights are loaded, and return what they check, in words.

    problems: A list to which the error of each check that fails is added, as one line. None: the first error is raised.
    """
    checks = applicable_checks(plan)
    for check in checks:
        try:
            check.function(plan)
        except (InputError, OSError) as error:
            if problems is None:
                raise
            problems.append(user_error_line(error))
    return [check.description for check in checks]


def applicable_checks(plan: RunPlan) -> list[Check]:
    """Return the checks of a run in their order."""
    held_out = f" and {len(plan.eval_rows):,} held out" if plan.eval_rows is not None else ""
    rows = f"{len(plan.rows):,} rows{held_out}: columns, expected answers, room for each prompt"
    if plan.environment is not None and plan.environment.schemas is not None:
        rows += " and its tools, and the chat template has them"
    checks = [
        Check("options and what they say of each other", check_engine),
        Check("output folder", check_output_folder),
        Check("trackers are installed", check_tracker_packages),
        Check("arguments of the rewards", check_rewards),
        Check("settings of turns", check_turns),
        Check(rows, check_rows),
    ]
    if plan.engine.lora is not None:
        checks.append(Check("layers for LoRA", check_adapter))
    return checks


def report_dry_run(plan: RunPlan, lines: Iterable[str]) -> int:
    """Print the report of a dry run, and return the exit code: 1 if a problem was found, else 0.

    lines: Lines at the beginning of the report. An InputError while they are made is reported as a problem.
    """
    problems: list[str] = []
    checked = run_checks(plan, problems)
    try:
        for line in itertools.chain(lines, plan_lines(plan)):
            print(line)
    except InputError as error:
        problems.append(user_error_line(error))
    # The check of the prompts and the plan both find a prompt that the chat template refuses; it is reported once.
    problems = list(dict.fromkeys(problems))
    count = f"{len(problems) or 'no'} problem{'s' * (len(problems) != 1)}"
    print(*(f"problem: {line}" for line in problems), f"dry run: {count} found", sep="\n")
    print(f"  checked: {'; '.join(checked)}\n  not tried: {NOT_TRIED}")
    return int(bool(problems))


def check_engine(plan: RunPlan) -> None:
    """Raise InputError for settings or an environment with which the engine cannot train."""
    plan.engine.check(plan.config, plan.environment)


def check_output_folder(plan: RunPlan) -> None:
    """Raise FileExistsError or FileNotFoundError if the run may not use its folder, which only one process writes."""
    if is_main():
        check_folder(plan.config)


def check_tracker_packages(plan: RunPlan) -> None:
    """Raise InputPackageError for a tracker that is not installed; only one process reports to trackers."""
    if is_main():
        check_trackers(plan.config)


def check_rewards(plan: RunPlan) -> None:
    """Raise InputError for a reward function that cannot take the arguments that the run passes to it."""
    check_reward_funcs(plan.task_spec.reward_funcs, plan.config, plan.rows, plan.environment)
    check_evaluation(plan.config, plan.rows, plan.eval_rows)


def check_turns(plan: RunPlan) -> None:
    """Raise InputError if the environment does not provide what the advantages of turns need."""
    check_turn_advantage(plan.config, plan.environment)


def check_rows(plan: RunPlan) -> None:
    """Raise InputError for tools without a chat template for them, and for the first row that cannot begin an episode.

    Without an environment an episode is a completion. The tokens of the tools count as part of the prompt.
    """
    model_config, tokenizer = plan.config_and_tokenizer
    datasets = {"dataset": plan.rows} | ({} if plan.eval_rows is None else {"eval_dataset": plan.eval_rows})
    check_prompts_of_run(ModelWithoutWeights(model_config), tokenizer, datasets, plan.config, plan.environment)


def check_adapter(plan: RunPlan) -> None:
    """Raise InputError if the model does not have the layers that LoRA is to adapt, without reading its weights."""
    model_config, _ = plan.config_and_tokenizer
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    lora_config(model, plan.engine.lora)


def plan_lines(plan: RunPlan) -> Iterator[str]:
    """Yield lines on a run: its steps and updates, its memory by phase, and the first prompt as the model sees it.

    The plan is fitted to memory as at the start of the run.
    """
    precision = plan.precision
    plan, fitting_lines = plan.fitted_to_memory()
    device, rows, config, (model_config, tokenizer) = plan.device, plan.rows, plan.config, plan.config_and_tokenizer
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
    elif plan.engine.lora is not None:
        yield LORA_NOT_PLANNED
    else:
        loaded_precision = pick_precision(device, plan.num_parameters, precision)
        try:
            yield str(
                plan_memory(
                    model_config,
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
