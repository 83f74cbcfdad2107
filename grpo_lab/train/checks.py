"""The checks of a run before its model is loaded, and the report of `--dry_run`."""

from collections.abc import Callable, Iterable, Iterator

import torch
from transformers import AutoModelForCausalLM

from grpo_lab.base.checks import InputError
from grpo_lab.base.language import counted
from grpo_lab.base.running import line_for
from grpo_lab.memory.planning import LORA_NOT_PLANNED, plan_memory
from grpo_lab.models.adapters import lora_config
from grpo_lab.models.device import pick_device_and_precision
from grpo_lab.models.tool_check import check_tool_environment
from grpo_lab.rollout.environments.choice import pick_environment
from grpo_lab.rollout.prompting.prompt_checks import check_prompts
from grpo_lab.rollout.prompting.prompts import encode_prompt, longest_prompt
from grpo_lab.rollout.prompting.templates import render_prompt
from grpo_lab.train.plan import RunPlan
from grpo_lab.trainer.run_checks import check_reward_arguments, check_same_columns
from grpo_lab.trainer.turn_credit import check_turn_advantage

NOT_TRIED = "loading the weights, sampling, calling a reward function or a tool, logging in to a tracker"


class ProblemCollector:
    """A caller of checks that collects their errors and reports them all at the end of a dry run."""

    def __init__(self):
        self.problems: list[str] = []

    def __call__(self, check: Callable, *arguments) -> None:
        try:
            check(*arguments)
        except (InputError, OSError) as error:
            self.problems.append(line_for(error))

    def report(self, lines: Iterable[str], checked: Iterable[str]) -> int:
        """Print the report of a dry run, and return the exit code: 1 if a problem was found, else 0.

        lines: Lines on the plan of the run. An InputError while they are made is reported as a problem.
        checked: What was checked, in words.
        """
        try:
            for line in lines:
                print(line)
        except InputError as error:
            self.problems.append(line_for(error))
        # The check of the prompts and the plan both find a prompt that the chat template refuses; it is reported once.
        problems = dict.fromkeys(self.problems)
        count = f"{len(problems) or 'no'} problem{'s' * (len(problems) != 1)}"
        print(*(f"problem: {line}" for line in problems), f"dry run: {count} found", sep="\n")
        print(f"  checked: {'; '.join(checked)}\n  not tried: {NOT_TRIED}")
        return int(bool(problems))


def check_rewards(plan: RunPlan) -> None:
    """Raise InputError for a reward function that cannot take the arguments that the run passes to it."""
    # With a factory, each episode has an environment of its own, and the rewards get them as `environments`.
    has_environments = "environment_factory" in plan.environment_arguments
    check_reward_arguments(plan.task_spec.reward_funcs, plan.rows[0], has_environments)
    if plan.eval_rows is not None:
        check_same_columns(plan.rows, plan.eval_rows)


def check_environment(plan: RunPlan) -> None:
    """Raise InputError for tools or an environment that do not fit each other, the model or the rows."""
    environment_arguments = plan.environment_arguments
    for name, option in (("tools", "tools"), ("environment_factory", "environment")):
        if "environment" in environment_arguments and name in environment_arguments:
            problem = "is given for a task that has an environment of its own"
            raise InputError(option, environment_arguments[name], "leave it out, or take another task", found=problem)
    keywords = {name: environment_arguments.get(name) for name in ("environment", "tools", "environment_factory")}
    # Made only for these checks; the training makes its own from the same arguments.
    trial_environment = pick_environment(
        **keywords,
        max_tool_calling_iterations=plan.config.max_tool_calling_iterations,
        tool_timeout=plan.config.tool_timeout,
    )
    check_turn_advantage(plan.config, trial_environment)
    check_tool_environment(trial_environment, plan.options["model"], plan.rows)


def check_lengths(plan: RunPlan, model_config, tokenizer) -> None:
    """Raise InputError for the first prompt that cannot be tokenized, or that leaves no room for a completion."""
    for name, rows in {"dataset": plan.rows, "eval_dataset": plan.eval_rows or []}.items():
        prompts = (rows[index]["prompt"] for index in range(len(rows)))
        length = plan.config.max_completion_length
        check_prompts(model_config, tokenizer, prompts, length, name)


def check_adapter(plan: RunPlan, model_config) -> None:
    """Raise InputError if the model does not have the layers that LoRA is to adapt, without reading its weights."""
    if plan.engine.lora is None:
        return
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    lora_config(model, plan.engine.lora)


def checked_parts(plan: RunPlan) -> list[str]:
    """List in words what a dry run has checked."""
    held_out = f" and {len(plan.eval_rows):,} held out" if plan.eval_rows is not None else ""
    return [
        "options and what they say of each other",
        "output folder",
        "trackers are installed",
        f"{len(plan.rows):,} rows{held_out}: columns, expected answers, room for each prompt",
        "arguments of the rewards",
        *["tools or environment: found, and the chat template has them"] * bool(plan.environment_arguments),
        *["layers for LoRA"] * (plan.engine.lora is not None),
    ]


def plan_lines(plan: RunPlan) -> Iterator[str]:
    """Yield lines on a run: its steps and updates, its memory by phase, and the first prompt as the model sees it.

    The plan is fitted to memory as at the start of the run, where the plan for a tiny model is not fitted either.
    """
    precision = plan.precision
    plan, fitting_lines = (plan, []) if plan.has_tiny_model else plan.fitted_to_memory()
    device, rows, config, (model_config, tokenizer) = plan.device, plan.rows, plan.config, plan.model_parts
    is_planned_for_gpu = device.type == "cuda" and bool(fitting_lines)
    if not is_planned_for_gpu:
        yield from fitting_lines
    yield (
        f"{config.max_steps:,} steps of {config.prompts_per_step} problems x {config.num_generations} completions, "
        f"{counted(config.updates_per_step, 'update')} each, {config.rows_at_once} completions at a time; "
        f"to {config.output_dir}"
    )
    if is_planned_for_gpu:
        yield from fitting_lines
    elif plan.engine.lora is not None:
        yield LORA_NOT_PLANNED
    else:
        _, loaded_precision = pick_device_and_precision(device, precision, exact_only=plan.has_tiny_model)
        length = longest_prompt(tokenizer, rows)
        try:
            yield str(
                plan_memory(
                    model_config, config, prompt_length=length, precision=loaded_precision.name, device_type=device.type
                )
            )
        except InputError as error:  # the run can train an architecture whose memory cannot be planned
            yield f"memory: not planned, since {error}"
    prompt = rows[0]["prompt"]
    yield f"the first prompt as the model sees it, {len(encode_prompt(tokenizer, prompt))} tokens:"
    yield from (f"  {line}" for line in render_prompt(tokenizer, prompt).splitlines())
