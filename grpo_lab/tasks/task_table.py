"""The tasks of the commands, by name: their problems, their rewards, and the settings of a run on them.

A task gives the names of its rewards, which `grpo_lab.rewards.named` looks up: the package of tasks does not import the
package of rewards. The first reward decides whether a completion is right.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from grpo_lab.base.checks import InputError, InputFileError, check_at_least
from grpo_lab.tasks.builtin_problems import (
    ANSWER_ONLY,
    MAX_WORD_PROBLEMS,
    STOP_STRINGS,
    addition_problems,
    calculator_replies,
    chat_tasks,
    word_problems,
)
from grpo_lab.tasks.data_options import DataOptions
from grpo_lab.tasks.gsm8k import GSM8K_HUB_ID, gsm8k_problems
from grpo_lab.tasks.gym import GYM_PREFIX, gym_problems, make_generator
from grpo_lab.tasks.records import FILE_SUFFIXES, HUB_ID_PATTERN
from grpo_lab.tasks.rows import THINK_SYSTEM_PROMPT, Row
from grpo_lab.tasks.short_sums import short_sums
from grpo_lab.tasks.user_data import UserData, read_user_data

NUM_TRAINING_SUMS = 20_000
# Default number of held-out problems in an evaluation. The 95% interval of an accuracy is then at most 0.062 wide.
MAX_EVALUATED = 1000


@dataclass(frozen=True)
class Task:
    """Problems of one kind, with their rewards and the lengths of prompts and completions.

    name: The value of `--task` that chooses the task.
    description: A short description for `--help`.
    problems: A function of a split, a number of problems (None for the usual number) and a seed, which returns rows.
    reward_funcs: Names of the reward functions.
    reward_weights: The weight of each reward; None weights each by 1.
    max_completion_length: Largest number of tokens of a completion.
    prompt_length: Approximate number of tokens of the longest prompt, for planning memory before a tokenizer is loaded.
    system_prompt: The system message for prompts without one; None for no message.
    language: The language of the problems, "en" or "zh".
    has_held_out: Whether the split "test" has other problems than the split "train".
    tiny_completion_length: Largest number of tokens of a completion of a tiny model (`is_tiny`), for a task whose form
        the bundled tiny model has learnt; None for another task.
    default_counts: The usual number of problems of a split, by split; a split without an entry has no usual number.
    respond: A function that returns an environment's replies within completions; None without an environment.
    stop_strings: The strings after which the environment replies.
    user_data: The problems of a file, a folder or a hub data set of the user's own; None for other tasks.
    """

    name: str
    description: str
    problems: Callable[..., Sequence[Row]]
    reward_funcs: tuple[str, ...]
    reward_weights: tuple[float, ...] | None
    max_completion_length: int
    prompt_length: int
    system_prompt: str | None = None
    language: str = "en"
    has_held_out: bool = True
    tiny_completion_length: int | None = None
    default_counts: dict[str, int] = field(default_factory=dict)
    respond: Callable[[list[str]], list[str]] | None = None
    stop_strings: tuple[str, ...] = ()
    user_data: UserData | None = None

    def rows(self, split: str = "train", n: int | None = None, seed: int = 0) -> Sequence[Row]:
        """Return `n` problems of a split; None for the usual number."""
        if n is not None:
            check_at_least("n", n, 1)
        return self.problems(split, n or self.default_counts.get(split), seed)

    def completion_length(self, for_tiny_model: bool) -> int:
        """Return the largest number of tokens of a completion; a tiny model may have a lower limit."""
        if for_tiny_model and self.tiny_completion_length:
            return self.tiny_completion_length
        return self.max_completion_length


def _chat_rows(split: str, n: int | None, seed: int, language: str) -> Sequence[Row]:
    return _first_rows(chat_tasks(language), split, n, "chat")


def _gsm8k_rows(split: str, n: int | None, seed: int, source: str | os.PathLike) -> Sequence[Row]:
    return _first_rows(gsm8k_problems(split, n, source), split, n, "gsm8k")


def _user_rows(split: str, n: int | None, seed: int, user_data: UserData, name: str) -> Sequence[Row]:
    rows = user_data.rows(split)
    if not rows:
        raise InputError(user_data.notes[-1])
    return _first_rows(rows, split, n, name)


def _first_rows(rows: Sequence[Row], split: str, n: int | None, name: str) -> Sequence[Row]:
    """Return the first `n` rows of a split; None for all rows, or for `MAX_EVALUATED` of the held-out ones.

    name: The name of the task, for the message.
    """
    if n is None:
        return rows[:MAX_EVALUATED] if split == "test" else rows
    if n > len(rows):
        raise InputError("n", n, f"it must be at most {len(rows)}, the problems of {name}")
    return rows[:n]


_WORD_PROBLEM_SETTINGS: dict[str, Any] = {
    "reward_funcs": ("math", "format"),
    "reward_weights": (1.0, 0.1),
    "max_completion_length": 256,
    "default_counts": {"train": 3000, "test": MAX_WORD_PROBLEMS["test"]},
}
_CHAT_SETTINGS: dict[str, Any] = {
    "reward_funcs": ("contains",),
    "reward_weights": None,
    "max_completion_length": 48,
    "has_held_out": False,
}
TASKS = {
    task.name: task
    for task in (
        Task("sums", "sums of three numbers, which the tiny model has met", addition_problems, ("accuracy", "think"),
             (1.0, 0.0), max_completion_length=128, prompt_length=80, system_prompt=THINK_SYSTEM_PROMPT,
             tiny_completion_length=64, default_counts={"train": NUM_TRAINING_SUMS, "test": MAX_EVALUATED}),
        Task("sums-calculator", "the same with a calculator: what follows \"=\" is written by it", addition_problems,
             ("accuracy", "think"), (1.0, 0.0), max_completion_length=128, prompt_length=80,
             system_prompt=THINK_SYSTEM_PROMPT, tiny_completion_length=64,
             default_counts={"train": NUM_TRAINING_SUMS, "test": MAX_EVALUATED},
             respond=calculator_replies, stop_strings=STOP_STRINGS),
        Task("short-sums", "sums of two numbers up to 20, in English, for a model that speaks it", short_sums,
             ("last",), None, max_completion_length=20, prompt_length=48),
        Task("word-problems", "twelve stories whose numbers change", partial(word_problems, language="en"),
             **_WORD_PROBLEM_SETTINGS, prompt_length=128),
        Task("word-problems-zh", "the same in Chinese, for a model that speaks it",
             partial(word_problems, language="zh"), **_WORD_PROBLEM_SETTINGS, prompt_length=160, language="zh"),
        Task("chat", "four short questions; none is held out", partial(_chat_rows, language="en"),
             **_CHAT_SETTINGS, prompt_length=64, system_prompt=ANSWER_ONLY["en"]),
        Task("chat-zh", "the same in Chinese; all Chinese that the tiny model knows",
             partial(_chat_rows, language="zh"), **_CHAT_SETTINGS, prompt_length=64, system_prompt=ANSWER_ONLY["zh"],
             language="zh", tiny_completion_length=48),
        Task("gsm8k", "school problems from the hub, with a worked example; gsm8k:FOLDER reads them from a folder",
             partial(_gsm8k_rows, source=GSM8K_HUB_ID), ("last", "format"), (1.0, 0.1),
             max_completion_length=256, prompt_length=448),
    )
}  # fmt: skip


def find_task(name: str, **options: str | None) -> Task:
    """Return the task with this name, or the task of a file, a folder or a hub data set of the user's own.

    "gsm8k:FOLDER" reads GSM8K from the folder. "gym:NAME" is a generator of reasoning-gym, "gym:NAME:a=1,b=2" the
    generator with options. If a folder on this machine has the name of a data set on the hub, the folder is read.

    options: Fields of `DataOptions`, which say how the user's own data is read: prompt_column="question",
        dataset_config="main".

    Raises:
        InputError: for an unknown name, and for options with a task that does not read the user's own data.
    """
    data_options, path = DataOptions(**options), Path(name).expanduser()
    base, colon, source = name.partition(":")
    is_package_task = name in TASKS or (colon and base in ("gsm8k", GYM_PREFIX.rstrip(":")))
    if not is_package_task and (path.suffix in FILE_SUFFIXES or path.is_dir()):
        if not path.exists():
            raise InputFileError("task", name, f"there is no such file in {Path.cwd()}")
        return user_task(path, data_options)
    if HUB_ID_PATTERN.fullmatch(name) and not path.exists():
        return user_task(name, data_options)
    data_options.check_unused("it is for data of your own: a file, a folder, or a data set of the hub")
    if name in TASKS:
        return TASKS[name]
    if base == "gsm8k" and source:
        return replace(TASKS["gsm8k"], name=name, problems=partial(_gsm8k_rows, source=source))
    if is_package_task and base != "gsm8k":
        make_generator(source)
        problems = partial(gym_problems, generator=source)
        return Task(name, "", problems, ("gym",), None, max_completion_length=256, prompt_length=256)
    known_names = ", ".join([*TASKS, f"{GYM_PREFIX}NAME"])
    suffixes = f"{', '.join(FILE_SUFFIXES[:-1])} or {FILE_SUFFIXES[-1]}"
    expected = f"expected {known_names}, or a file of your own that ends in {suffixes}, a folder of such files, "
    raise InputError("task", name, expected + "or OWNER/NAME, a data set of the Hugging Face hub")


def user_task(source: Path | str, options: DataOptions) -> Task:
    """Return the task of the user's own data; its system prompt is in the language of most problems.

    source: The path of a file or a folder, or as a string the name of a data set on the hub.
    """
    user_data = read_user_data(source, options)
    name = source if isinstance(source, str) else source.name
    problems = partial(_user_rows, user_data=user_data, name=name)
    return Task(
        str(source), "", problems, ("accuracy",), None, max_completion_length=256, prompt_length=256,
        language=user_data.language, user_data=user_data,
    )  # fmt: skip
