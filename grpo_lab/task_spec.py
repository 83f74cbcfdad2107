"""The task that a command trains on or measures, with its rewards and its system prompt, looked up by name."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.base.option import NamedCode, check_value, default_values, option, option_specs
from grpo_lab.rewards.functions import check_weights, describe_value
from grpo_lab.rewards.named import REWARD_FUNCTIONS, any_reads_tags, check_reward_columns, find_rewards, short_name
from grpo_lab.rewards.text import prompt_text
from grpo_lab.tasks import SPLITS, TASKS, Row, Rows, Task, as_text, data_options, find_task, with_system
from grpo_lab.tasks.records import FILE_SUFFIXES
from grpo_lab.tasks.rows import THINK_SYSTEM_PROMPTS, mapped

SUMS = "sums"  # the default task
EXAMPLE_SUM = "17+58+42=?"  # a problem of the default task
_SUM_PATTERN = re.compile(r"[\d+=? ]+")
# Stands for the default, which `make_task_spec` chooses; `--help` prints it.
DEFAULT_SYSTEM_PROMPT = "by the task and its rewards"
MODEL_TEMPLATE = "model"


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The options that define the task and its rewards; those of the user's own data are in `DataOptions`."""

    task: str = option(
        SUMS,
        f"{'; '.join(f'{task.name} ({task.description})' for task in TASKS.values())}; gym:NAME, of reasoning-gym (its "
        "GALLERY.md shows them); or data of your own with the columns prompt and answer: a file "
        f"({', '.join(FILE_SUFFIXES)}), a folder of these, or OWNER/NAME of the Hugging Face hub",
        named_code=NamedCode.TASK,
        metavar="TASK",
        aliases=("dataset_name",),
        passed_to_evaluate=True,
    )
    chat_template: str = option(
        MODEL_TEMPLATE,
        '"none" gives the problems as plain text, as a base model needs them; "model" takes the model\'s own template',
        choices=(MODEL_TEMPLATE, "none"),
        passed_to_evaluate=True,
    )
    reward_funcs: list[str] | None = option(
        None,
        f"one or several of {', '.join(REWARD_FUNCTIONS)} (docs/own-task.md says what each gives), or FILE:function, "
        "one of your own, or module:function; the first says what is right",
        named_code=NamedCode.REWARDS,
        default_text="the task's",
        metavar="REWARD",
        passed_to_evaluate=True,
    )
    system_prompt: str = option(
        DEFAULT_SYSTEM_PROMPT,
        'what the system says before each problem, "none" for nothing',
        named_code=NamedCode.NOTHING,
        metavar="TEXT",
        passed_to_evaluate=True,
    )


TASK_OPTIONS = option_specs(TaskOptions) | data_options.DATA_OPTIONS
TASK_OPTION_DEFAULTS = default_values(TASK_OPTIONS)


@dataclass(frozen=True)
class TaskSpec:
    """A task with its rewards and its system prompt, each as chosen by an option or by default.

    reward_funcs: The reward functions, one for each of `reward_names`.
    reward_weights: The weight of each reward; None weights each by 1.
    system_prompt: The text of the system message; None for no message.
    replaces_system_prompt: Whether the system prompt replaces the system messages that rows already have.
    has_plain_prompts: Whether the prompts are plain texts instead of lists of chat messages.
    for_bundled_model: Whether the model is the bundled tiny model, or trained from it (`is_bundled_model`).
    """

    task: Task
    reward_names: tuple[str, ...]
    reward_funcs: list[Callable]
    reward_weights: list[float] | None
    system_prompt: str | None
    replaces_system_prompt: bool
    has_plain_prompts: bool = False
    for_bundled_model: bool = False

    def rows(self, split: str, n: int | None, seed: int) -> Sequence[Row]:
        """Return problems of a split with the system prompt, after checking the columns that the rewards need.

        n: Number of problems; None for the usual number.
        """
        check_choice("split", split, SPLITS)
        rows, user_data = self.task.rows(split, n, seed), self.task.user_data
        if user_data is None:
            check_reward_columns(list(self.reward_names), rows)
        else:
            # All splits are checked, so that a fault in the held-out problems is reported before the training.
            for name in SPLITS:
                if rows_of_split := user_data.rows(name):
                    check_reward_columns(list(self.reward_names), rows_of_split, user_data.locations(name))
        rows = self.with_system(rows)
        if not self.has_plain_prompts:
            return rows
        return mapped(rows, lambda row: row | {"prompt": as_text(row["prompt"])})

    def with_system(self, rows: Iterable[Row]) -> Sequence[Row]:
        """Return the rows with the system prompt of this task."""
        return with_system(rows, self.system_prompt, self.replaces_system_prompt)

    def description_lines(self, rows: Rows) -> list[str]:
        """Describe rewards, prompt and the user's data; warn of problems that the bundled model cannot solve."""
        weights = self.reward_weights or [1.0] * len(self.reward_names)
        rewards = " + ".join(f"{weight:g} {name}" for name, weight in zip(self.reward_names, weights, strict=True))
        first_prompt = rows[0]["prompt"]
        if isinstance(first_prompt, str):
            prompt_line = f"the first prompt is {describe_value(first_prompt)}"
        else:
            first_message = first_prompt[0]
            system_text = repr(first_message["content"]) if first_message["role"] == "system" else "none"
            prompt_line = f"system prompt: {system_text}"
        lines = [f"task {self.task.name}: reward = {rewards}; {prompt_line}"]
        if user_data := self.task.user_data:
            train, test = (len(user_data.rows(split)) for split in SPLITS)
            lines += [f"problems to train on: {train:,}, held out: {test:,}", *user_data.notes]
        knows_only_sums = self.for_bundled_model and self.task.tiny_completion_length is None
        if knows_only_sums and (
            unknown := sum(_SUM_PATTERN.fullmatch(prompt_text(row["prompt"])) is None for row in rows)
        ):
            warning = f"are not sums such as {EXAMPLE_SUM}, which is all that the tiny model has learnt"
            warning += ": expect next to no reward"
            suggestion = "--model qwen reads Chinese" if self.task.language == "zh" else "--model smollm2 reads English"
            lines.append(f"{unknown:,} of {len(rows):,} problems {warning}; {suggestion}")
        return lines


def make_task_spec(
    task: str = SUMS,
    reward_funcs: list[str] | None = None,
    system_prompt: str = DEFAULT_SYSTEM_PROMPT,
    reward_weights: list[float] | None = None,
    chat_template: str = MODEL_TEMPLATE,
    *,
    for_bundled_model: bool,
    **data: str | None,
) -> TaskSpec:
    """Look up the task and the rewards that the options name, and fill in the defaults.

    Args:
        task: The name of a task, a file, a folder or a hub data set, as `find_task` takes it.
        reward_funcs: Names of reward functions; None takes the rewards of the task.
        system_prompt: The text of the system message; "none" for no message. The default is the task's system prompt,
            or the one that asks for think and answer tags if a reward reads them; for the bundled model there is no
            message.
        reward_weights: The weight of each reward; None takes the task's weights with the task's rewards, else 1 each.
        chat_template: The default applies the model's chat template; any other value gives prompts as plain text.
        for_bundled_model: Whether the model is the bundled tiny model, or trained from it (`is_bundled_model`).
        **data: Options that say how the user's own data is read, as `find_task` takes them.
    """
    check_value(TASK_OPTIONS["chat_template"], chat_template)
    chosen_task = find_task(task, **data)
    names = tuple(short_name(name) for name in reward_funcs or chosen_task.reward_funcs)
    functions = find_rewards(names)
    if reward_weights is None and reward_funcs is None and chosen_task.reward_weights is not None:
        reward_weights = list(chosen_task.reward_weights)
    check_weights(reward_weights, names)
    if system_prompt != DEFAULT_SYSTEM_PROMPT:
        if not system_prompt.strip():
            raise InputError("system_prompt", system_prompt, "expected a text, or none for nothing")
        system_text = None if system_prompt.lower() == "none" else system_prompt
    elif for_bundled_model:
        # The tiny model was warmed up on bare problems: after an instruction it gets no sum right.
        system_text = None
    else:
        system_text = THINK_SYSTEM_PROMPTS[chosen_task.language] if any_reads_tags(names) else chosen_task.system_prompt
    return TaskSpec(
        task=chosen_task,
        reward_names=names,
        reward_funcs=functions,
        reward_weights=reward_weights,
        system_prompt=system_text,
        replaces_system_prompt=system_prompt != DEFAULT_SYSTEM_PROMPT,
        has_plain_prompts=chat_template != MODEL_TEMPLATE,
        for_bundled_model=for_bundled_model,
    )
