"""What a command trains or measures: a task, its rewards, and what the system says; looked up by name, as rows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.base import shell_line
from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.rewards.functions import check_weights
from grpo_lab.rewards.named import REWARD_FUNCTIONS, any_reads_tags, check_reward_columns, find_rewards, short_name
from grpo_lab.rewards.text import prompt_text, shortened
from grpo_lab.sandbox.python import PYTHON_TOOL
from grpo_lab.tasks import SPLITS, TASKS, Row, Task, as_text, data_options, find_task, with_system
from grpo_lab.tasks.records import KINDS
from grpo_lab.tasks.rows import THINK, mapped

SUMS = "sums"  # the task where none is named
EXAMPLE_SUM = "17+58+42=?"  # one of them
_SUM_PATTERN = re.compile(r"[\d+=? ]+")
BY_REWARDS = "by the task and its rewards"
MODEL_TEMPLATE = "model"
# The options that say what is asked and rewarded, and what they are where nobody gives them.
TASK_OPTION_DEFAULTS = {
    "task": SUMS,
    "reward_funcs": None,
    "system_prompt": BY_REWARDS,
    "chat_template": MODEL_TEMPLATE,
}
TASK_OPTION_DEFAULTS |= dict.fromkeys(data_options.OPTIONS)  # how data of one's own is read
# Options whose values are imported: they are taken from the command line, never from a file.
OPTIONS_THAT_IMPORT = {"tools": None, "environment": None}  # option -> its default


def check_names(options: dict[str, Any], file: Path) -> None:
    """Raise InputError for code that a file names: it has to be typed.

    Else whoever wrote the file would run code here, by a task, a reward, a tool or a formula. The rewards and tasks of
    this package are taken, and files of problems.

    options: as the file has them, without those that were typed.
    """
    for option, words in typed_names(options).items():
        expected = "from a file only names of this package and problems on this machine are taken, since others may "
        expected += f"run code; if you trust it, type {shell_line(words)}"
        raise InputError(option, options[option], expected, found=f"is {options[option]!r:.200} in {str(file)!r}")


def typed_names(options: dict[str, Any]) -> dict[str, list[str]]:
    """List the rewards, the task and the formulas that have to be typed, as words of a command line, by option."""
    words = {}
    for option, may_stand_in_a_file in _MAY_STAND_IN_A_FILE.items():
        value = options.get(option)
        if not may_stand_in_a_file(value):
            words[option] = [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return words


def _are_our_rewards(value: Any) -> bool:
    names = value if isinstance(value, list) else [value] if value else []
    return all(isinstance(name, str) and short_name(name) in REWARD_FUNCTIONS for name in names)


def _is_safe_task(name: Any) -> bool:
    """True for a task that a file may name, since it runs nobody's code.

    That is a task of the package, a gym generator with plain options, or problems on this machine. (A path such as
    \\\\host\\share is refused: Windows would send its login there.)
    """
    if not isinstance(name, str):
        return name is None
    if name in TASKS or re.fullmatch(r"gym:\w+(?::[\w=.,+\- \[\]]*)?", name):
        return True
    path = name.removeprefix("gsm8k:")
    is_remote = re.match(r"\\|/[\\/]", path)
    is_data = path != name or name.endswith(KINDS) or Path(path).is_dir()
    return not is_remote and is_data and Path(path).exists()


def _is_our_formula(name: Any) -> bool:
    return ":" not in str(name)


def _imports_nothing(value: Any) -> bool:
    return value in (None, [PYTHON_TOOL])


# Of each option that may name code, whether a value of it runs nobody's.
_MAY_STAND_IN_A_FILE: dict[str, Callable[[Any], bool]] = {
    "reward_funcs": _are_our_rewards,
    "task": _is_safe_task,
    "loss_type": _is_our_formula,
    "advantage": _is_our_formula,
}
_MAY_STAND_IN_A_FILE |= dict.fromkeys(OPTIONS_THAT_IMPORT, _imports_nothing)


@dataclass(frozen=True)
class TaskSpec:
    """A task for a model of one size, with the rewards and the system prompt that were asked for or go with it."""

    task: Task
    reward_names: tuple[str, ...]
    reward_funcs: list[Callable]  # the rewards of these names, as the run gets them
    reward_weights: list[float] | None
    system_prompt: str | None
    replaces_system_prompt: bool  # whether it takes the place of those that rows bring
    plain_text: bool = False  # whether the model gets texts, and no chat messages
    small: bool = False  # whether it is for a model as small as the tiny one

    def rows(self, split: str, n: int | None, seed: int) -> Sequence[Row]:
        """Problems of a split, checked for what the rewards need, with the system prompt in front."""
        check_choice("split", split, SPLITS)
        rows, own = self.task.rows(split, n, seed), self.task.own
        if own is None:
            check_reward_columns(list(self.reward_names), rows)
        else:
            # All splits: who trains learns of the fault, not who measures later.
            for name, own_rows in own.rows_by_split.items():
                if own_rows:
                    check_reward_columns(list(self.reward_names), own_rows, own.locations_by_split[name])
        rows = with_system(rows, self.system_prompt, self.replaces_system_prompt)
        return mapped(rows, lambda row: row | {"prompt": as_text(row["prompt"])}) if self.plain_text else rows

    def description_lines(self, rows: Sequence[Row]) -> list[str]:
        """Describe the task's rewards, its prompt, its own data and what the tiny model lacks."""
        weights = self.reward_weights or [1.0] * len(self.reward_names)
        rewards = " + ".join(f"{weight:g} {name}" for name, weight in zip(self.reward_names, weights, strict=True))
        first = rows[0]["prompt"]
        if isinstance(first, str):
            prompt_line = f"the first prompt is {shortened(first)}"
        else:
            prompt_line = f"system prompt: {repr(first[0]['content']) if first[0]['role'] == 'system' else 'none'}"
        lines = [f"task {self.task.name}: reward = {rewards}; {prompt_line}"]
        if own := self.task.own:
            train, test = (len(own.rows_by_split[split]) for split in SPLITS)
            lines += [f"problems to train on: {train:,}, held out: {test:,}", *own.notes]
        knows_sums_alone = self.small and self.task.tiny_completion_length is None
        if knows_sums_alone and (unknown := sum(not _is_sum(row) for row in rows)):
            warning = f"are no sums such as {EXAMPLE_SUM}, which is all that the tiny model has learnt"
            warning += ": expect next to no reward"
            reads = "--model qwen reads Chinese" if self.task.language == "zh" else "--model smollm2 reads English"
            lines.append(f"{unknown:,} of {len(rows):,} problems {warning}; {reads}")
        return lines


def _is_sum(row: Row) -> bool:
    return _SUM_PATTERN.fullmatch(prompt_text(row["prompt"])) is not None


def make_task_spec(
    task: str = SUMS,
    reward_funcs: list[str] | None = None,
    system_prompt: str = BY_REWARDS,
    reward_weights: list[float] | None = None,
    chat_template: str = MODEL_TEMPLATE,
    *,
    small: bool,
    **data: str | None,
) -> TaskSpec:
    """Look up what the options name, for a model as small as the tiny one or for a larger one.

    data: how data of one's own is read, as `find_task` takes it.
    """
    chosen_task = find_task(task, **data)
    names = tuple(short_name(name) for name in reward_funcs or chosen_task.reward_funcs)
    functions = find_rewards(names)
    if reward_weights is None and reward_funcs is None and chosen_task.reward_weights is not None:
        reward_weights = list(chosen_task.reward_weights)
    check_weights(reward_weights, names)
    system_text = _system_prompt(system_prompt, chosen_task, names, small)
    return TaskSpec(
        task=chosen_task,
        reward_names=names,
        reward_funcs=functions,
        reward_weights=reward_weights,
        system_prompt=system_text,
        replaces_system_prompt=system_prompt != BY_REWARDS,
        plain_text=chat_template != MODEL_TEMPLATE,
        small=small,
    )


def _system_prompt(option: str, task: Task, names: tuple[str, ...], small: bool) -> str | None:
    if option == BY_REWARDS:
        if small:  # warmed up on bare problems: before an instruction it gets no sum right
            return None
        return THINK[task.language] if any_reads_tags(names) else task.system_prompt
    if not option.strip():
        raise InputError("system_prompt", option, "expected a text, or none for nothing")
    return None if option.lower() == "none" else option
