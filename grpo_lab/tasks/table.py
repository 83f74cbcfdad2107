"""Tasks by name, for the commands: their problems, and what a run on them needs.

A task names its rewards, and `grpo_lab.rewards.named` finds them: tasks stand before rewards. The first reward is the
one that says whether a completion is right.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from grpo_lab.base.checks import InputError, InputFileError, check_at_least
from grpo_lab.tasks.addition import addition_problems
from grpo_lab.tasks.calculator import STOP_STRINGS, calculators
from grpo_lab.tasks.chats import ANSWER_ONLY, chat_tasks
from grpo_lab.tasks.data_options import DataOptions
from grpo_lab.tasks.gsm8k import HUB_ID, gsm8k_problems
from grpo_lab.tasks.gym import PREFIX, gym_problems, make_generator
from grpo_lab.tasks.own import OwnProblems, own_problems
from grpo_lab.tasks.records import HUB_ID as HUB_NAME
from grpo_lab.tasks.records import KINDS
from grpo_lab.tasks.rows import THINK_SYSTEM_PROMPT, Row
from grpo_lab.tasks.short import short_sums
from grpo_lab.tasks.words import MAX_WORD_PROBLEMS, word_problems

TRAINING_SUMS = 20_000
MAX_EVALUATED = 1000  # held-out problems of an evaluation where nothing is said: a 95% interval of at most 0.06


@dataclass(frozen=True)
class Task:
    """Problems of one kind, the rewards that go with them, and how long prompts and completions are."""

    name: str
    about: str
    problems: Callable[[str, int | None, int], Sequence[Row]]  # split, number (None: as many as are usual), seed
    reward_funcs: tuple[str, ...]
    reward_weights: tuple[float, ...] | None  # None: 1 each
    max_completion_length: int
    prompt_length: int  # tokens, about those of the longest; memory is planned before there is a tokenizer
    system_prompt: str | None = None  # for problems that bring none
    language: str = "en"
    held_out: bool = True  # whether the split "test" has other problems than "train"
    tiny_completion_length: int | None = None  # enough for the tiny model, if it has learnt the task's form
    default_counts: dict[str, int] = field(default_factory=dict)  # problems of a split where no number is said
    respond: Callable[[list[str]], list[str]] | None = None  # what an environment replies within a completion
    stop_strings: tuple[str, ...] = ()  # that hand the word to it
    own: OwnProblems | None = None  # where it is one's own: what is to be said of its file, and where each row stands

    def rows(self, split: str = "train", n: int | None = None, seed: int = 0) -> Sequence[Row]:
        """`n` problems of a split; None for as many as are usual."""
        if n is not None:
            check_at_least("n", n, 1)
        return self.problems(split, n or self.default_counts.get(split), seed)

    def completion_length(self, small: bool) -> int:
        """Tokens that a completion may have; `small`: for a model as small as the tiny one."""
        return self.tiny_completion_length if small and self.tiny_completion_length else self.max_completion_length


def _chats(split: str, n: int | None, seed: int, language: str) -> list[Row]:
    return _first(chat_tasks(language), n, "chat")


def _gsm8k(split: str, n: int | None, seed: int, source: str | os.PathLike) -> list[Row]:
    rows = gsm8k_problems(split, n, source)
    return rows[:MAX_EVALUATED] if n is None and split == "test" else rows


def _own(split: str, n: int | None, seed: int, own: OwnProblems, name: str) -> Sequence[Row]:
    rows = own.rows(split)
    if not rows:
        raise InputError(own.notes[-1])
    return rows[:MAX_EVALUATED] if n is None and split == "test" else _first(rows, n, name)


def _first(rows: Sequence[Row], n: int | None, name: str) -> Sequence[Row]:
    if n is not None and n > len(rows):
        raise InputError("n", n, f"it must be at most {len(rows)}, the problems of {name}")
    return rows[:n]


_WORDS = {"reward_funcs": ("math", "format"), "reward_weights": (1.0, 0.1), "max_completion_length": 256}
_WORDS |= {"default_counts": {"train": 3000, "test": MAX_WORD_PROBLEMS["test"]}}
_CHAT = {"reward_funcs": ("contains",), "reward_weights": None, "max_completion_length": 48, "held_out": False}
TASKS = {
    task.name: task
    for task in (
        Task("sums", "sums of three numbers, which the tiny model has met", addition_problems, ("accuracy", "think"),
             (1.0, 0.0), max_completion_length=128, prompt_length=80, system_prompt=THINK_SYSTEM_PROMPT,
             tiny_completion_length=64, default_counts={"train": TRAINING_SUMS, "test": MAX_EVALUATED}),
        Task("sums-calculator", "the same with a calculator: what follows \"=\" is written by it", addition_problems,
             ("accuracy", "think"), (1.0, 0.0), max_completion_length=128, prompt_length=80,
             system_prompt=THINK_SYSTEM_PROMPT, tiny_completion_length=64,
             default_counts={"train": TRAINING_SUMS, "test": MAX_EVALUATED},
             respond=calculators, stop_strings=STOP_STRINGS),
        Task("short-sums", "sums of two numbers up to 20, in English, for a model that speaks it", short_sums,
             ("last",), None, max_completion_length=20, prompt_length=48),
        Task("word-problems", "twelve stories whose numbers change", partial(word_problems, language="en"),
             **_WORDS, prompt_length=128),
        Task("word-problems-zh", "the same in Chinese, for a model that speaks it",
             partial(word_problems, language="zh"), **_WORDS, prompt_length=160, language="zh"),
        Task("chat", "four short questions; none is held out", partial(_chats, language="en"),
             **_CHAT, prompt_length=64, system_prompt=ANSWER_ONLY["en"]),
        Task("chat-zh", "the same in Chinese; all Chinese that the tiny model knows", partial(_chats, language="zh"),
             **_CHAT, prompt_length=64, system_prompt=ANSWER_ONLY["zh"], language="zh", tiny_completion_length=48),
        Task("gsm8k", "school problems from the hub, with a worked example; gsm8k:FOLDER reads them from a folder",
             partial(_gsm8k, source=HUB_ID), ("last", "format"), (1.0, 0.1),
             max_completion_length=256, prompt_length=448),
    )
}  # fmt: skip


def find_task(name: str, **options: str | None) -> Task:
    """The task of this name, or that of a file, a folder or a hub data set of one's own.

    "gsm8k:FOLDER" takes GSM8K from there; "gym:NAME" is a generator of reasoning-gym, "gym:NAME:a=1,b=2" with options.
    A folder on this machine comes before a data set of the same name on the hub.

    options: how one's own data is read, as `DataOptions` takes it: prompt_column="question", dataset_config="main".
    """
    data_options, path = DataOptions(**options), Path(name).expanduser()
    base, colon, source = name.partition(":")
    is_ours = name in TASKS or (colon and base in ("gsm8k", PREFIX.rstrip(":")))
    if not is_ours and (path.suffix in KINDS or path.is_dir()):
        if not path.exists():
            raise InputFileError("task", name, f"there is no such file in {Path.cwd()}")
        return own_task(path, data_options)
    if HUB_NAME.fullmatch(name) and not path.exists():
        return own_task(name, data_options)
    data_options.check_unused("it is for data of your own: a file, a folder, or a data set of the hub")
    if name in TASKS:
        return TASKS[name]
    if base == "gsm8k" and source:
        return replace(TASKS["gsm8k"], name=name, problems=partial(_gsm8k, source=source))
    if is_ours and base != "gsm8k":
        make_generator(source)
        problems = partial(gym_problems, generator=source)
        return Task(name, "", problems, ("gym",), None, max_completion_length=256, prompt_length=256)
    known = ", ".join([*TASKS, f"{PREFIX}NAME"])
    kinds = ", ".join(KINDS[:-1])
    expected = f"expected {known}, or a file of your own that ends in {kinds} or {KINDS[-1]}, a folder of such files, "
    raise InputError("task", name, expected + "or OWNER/NAME, a data set of the Hugging Face hub")


def own_task(source: Path | str, options: DataOptions) -> Task:
    """The task of one's own data; its instructions are in Chinese where most of its problems are.

    source: a file or a folder; a text is the name of a data set of the hub.
    """
    own = own_problems(source, options)
    name = source if isinstance(source, str) else source.name
    settings = {
        "reward_funcs": ("accuracy",),
        "reward_weights": None,
        "max_completion_length": 256,
        "prompt_length": 256,
    }
    problems = partial(_own, own=own, name=name)
    return Task(str(source), "", problems, **settings, language=own.language, own=own)
