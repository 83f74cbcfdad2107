"""Define the model, the tasks and the rewards of the runs in `faults_planted.py`: short runs of the tiny model."""

import contextlib
import io
import math
import random
import re
from functools import cache

from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rewards.text import completion_text
from grpo_lab.tasks import addition_problems, chat_tasks, word_problems

OURS, TRL = "ours", "trl"  # the engines
BOTH = (OURS, TRL)
# Settings that all runs share, unless a run replaces them.
COMMON = {
    "num_generations": 8,
    "generation_batch_size": 64,
    "learning_rate": 2e-4,
    "warmup_steps": 0,
    "max_steps": 30,
    "disable_tqdm": True,
}


def load_tiny(precision: str | None = None) -> tuple:
    """Load the tiny model and its tokenizer without printing."""
    with contextlib.redirect_stdout(io.StringIO()):
        return load_policy("tiny", device="cpu", precision=precision)


# ---- tasks


def with_answer_start(rows: list[dict], begin: str) -> list[dict]:
    """Return sums whose prompt contains the beginning of the reply: "<answer>" for a guess, "<think>" for a thought.

    A guess then has five tokens, and a step takes 0.1 s.
    """
    tokenizer = load_tiny()[1]
    texts = [tokenizer.apply_chat_template(r["prompt"], tokenize=False, add_generation_prompt=True) for r in rows]
    return [{"prompt": text + begin, "answer": row["answer"]} for text, row in zip(texts, rows, strict=True)]


@cache
def problems(task: str, split: str, seed: int) -> list[dict]:
    """Return the problems of a task's split.

    "few" after the task's name keeps four training problems; "shifted" makes their answers 40 too large. Neither
    changes the held-out problems.
    """
    name, _, variation = task.partition(" ")
    few, shifted = (variation == word and split == "train" for word in ("few", "shifted"))
    count = 4 if few else {"train": 2000, "test": 32}[split]
    if name == "chat":
        return chat_tasks("zh")
    if name == "stories":
        return word_problems(split, count, seed)
    rows = addition_problems(split, count, seed=seed if split == "train" else 1)
    begin = {"sums": None, "guess": "<answer>", "work": "<think>"}[name]
    rows = rows if begin is None else with_answer_start(rows, begin)
    return [row | {"answer": str(int(row["answer"]) + 40)} for row in rows] if shifted else rows


# ---- rewards


def number_in(completion) -> int | None:
    match = re.search(r"\d+", completion_text(completion))
    return None if match is None else int(match[0])


def right(completions, answer, **_) -> list[float]:
    """Return 1 for the right number in a reply that the prompt has begun with "<answer>"."""
    return [float(number_in(c) == int(a)) for c, a in zip(completions, answer, strict=True)]


def worked(completions, answer, **_) -> list[float]:
    """Return 1 for the right answer after a chain of thought that the prompt has begun."""
    return accuracy_reward([f"<think>{c}" for c in completions], answer)


def near(completions, answer, **_) -> list[float]:
    """Return a reward from 0 to 1 that rises as the number comes near the right one."""
    numbers = [number_in(c) for c in completions]
    return [0.0 if n is None else math.exp(-abs(n - int(a)) / 25) for n, a in zip(numbers, answer, strict=True)]


def even(completions, **_) -> list[float]:
    return [float((number_in(c) or 1) % 2 == 0) for c in completions]


def has_seven(completions, **_) -> list[float]:
    return [float("7" in completion_text(c)) for c in completions]


def has_number(completions, **_) -> list[float]:
    return [float(number_in(c) is not None) for c in completions]


def boxed(completions, answer, **_) -> list[float]:
    r"""Return 1 for \boxed{} around the answer, a form that the tiny model never writes."""
    return [float(f"\\boxed{{{a}}}" in completion_text(c)) for c, a in zip(completions, answer, strict=True)]


def mean_near(completions, answer, **_) -> list[float]:
    """Return the mean reward of the batch for each completion, which is the planted mistake."""
    values = near(completions, answer)
    return [sum(values) / len(values)] * len(values)


def odd(completions, **_) -> list[float]:
    return [1.0 - value for value in even(completions)]


def two_digits(completions, **_) -> list[float]:
    return [float((number_in(c) or 999) < 100) for c in completions]


def wordy(completions, **_) -> list[float]:
    return [len(completion_text(c)) / 40 for c in completions]


def now_and_then_huge(completions, answer, **_) -> list[float]:
    """Return rewards of which one in 500 is a thousand times too large, which is the planted mistake."""
    return [value * (1000 if random.random() < 1 / 500 else 1) for value in near(completions, answer)]
