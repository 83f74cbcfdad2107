"""Problems with known answers, as rows that TRL's trainers take too.

A row is a plain dict: `prompt` is a list of chat messages, `answer` is the expected text, and every further key is a
column that reward functions receive by keyword. `datasets.Dataset.from_list(rows)` accepts them as they are.

Training and held-out problems are disjoint by construction: a hash of the problem itself decides its split, so no seed
and no number of problems can bring one into both. Operands are sorted before hashing, so 17+58+42 and 58+42+17 are on
the same side.
"""

import hashlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

Row = dict  # {"prompt": list[dict[str, str]], "answer": str, ...}


@runtime_checkable
class Rows(Protocol):
    """What a list of dicts and a `datasets.Dataset` have in common."""

    def __len__(self) -> int: ...

    def __getitem__(self, index): ...


SPLITS = ("train", "test")
TEST_SHARE = 0.1
SMALLEST, LARGEST = 10, 99
MAX_PROBLEMS = {"train": 500_000, "test": 50_000}
MAX_WORD_PROBLEMS = {"train": 3600, "test": 360}
THINK_SYSTEM_PROMPT = (
    "Solve the problem. First reason step by step between <think> and </think>, "
    "then give only the final answer between <answer> and </answer>."
)

_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def split_of(*key: object) -> str:
    """The split, "train" or "test", that a problem belongs to; `key` is whatever identifies the problem."""
    digest = hashlib.blake2b(repr(key).encode("utf-8"), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**64 else "train"


def addition_split(operands: list[int] | tuple[int, ...]) -> str:
    """The split of a sum; the order of the operands does not matter."""
    return split_of("addition", *sorted(operands))


def addition_row(operands: list[int] | tuple[int, ...]) -> Row:
    """One sum as a row: `addition_row([17, 58, 42])` asks "17+58+42=?" and expects "117"."""
    question = "+".join(map(str, operands)) + "=?"
    return {"prompt": _user(question), "answer": str(sum(operands)), "operands": list(operands)}


def addition_problems(split: str = "train", n: int = 1000, seed: int = 0) -> list[Row]:
    """`n` different sums of three two-digit numbers from one split.

    The same arguments always give the same rows; a longer list starts with the shorter one.
    """
    _check(split, n, MAX_PROBLEMS)
    rng = random.Random(f"addition/{split}/{seed}")
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < n:
        operands = tuple(rng.randint(SMALLEST, LARGEST) for _ in range(3))
        if addition_split(operands) == split:
            seen[operands] = None
    return [addition_row(operands) for operands in seen]


def chat_tasks() -> list[Row]:
    """Four small chat tasks in Chinese; a response is right when it contains the expected text."""
    pairs = [
        ("czq是谁", "czq是神！"),
        ("2+2", "4"),
        ("把“我喜欢机器学习”翻译成英文", "I like machine learning"),
        ("只回答：通义千问", "通义千问"),
    ]
    return [{"prompt": _user(question), "answer": answer} for question, answer in pairs]


@dataclass(frozen=True)
class WordProblem:
    """A story with numbers left open: `ranges` are inclusive, `solve` gives the exact answer."""

    story: str
    ranges: tuple[tuple[int, int], ...]
    solve: Callable[..., int | Fraction]


WORD_PROBLEMS = (
    WordProblem(
        "Mei has {} marbles. She buys {} more and gives {} to her brother. How many marbles has she now?",
        ((20, 60), (5, 30), (3, 19)),
        lambda a, b, c: a + b - c,
    ),
    WordProblem(
        "A box holds {} eggs. A farmer fills {} boxes and has {} eggs left over. How many eggs did the hens lay?",
        ((6, 24), (3, 12), (1, 5)),
        lambda a, b, c: a * b + c,
    ),
    WordProblem(
        "A train has {} coaches with {} seats each. {} seats are taken. How many seats are free?",
        ((4, 9), (30, 60), (40, 110)),
        lambda a, b, c: a * b - c,
    ),
    WordProblem(
        "Tom reads {} pages a day. How many pages does he read in {} weeks?",
        ((8, 60), (2, 9)),
        lambda a, b: 7 * a * b,
    ),
    WordProblem(
        "A rope of {} metres is cut into {} equal pieces. How many metres long is each piece?",
        ((3, 60), (2, 12)),
        lambda a, b: Fraction(a, b),
    ),
    WordProblem(
        "A bag has {} red and {} blue balls. One ball is drawn at random. What is the probability that it is red?",
        ((1, 30), (1, 30)),
        lambda a, b: Fraction(a, a + b),
    ),
    WordProblem(
        "Ana is {} years old. Her mother is {} times as old. How old will the mother be in {} years?",
        ((6, 14), (2, 5), (2, 20)),
        lambda a, b, c: a * b + c,
    ),
    WordProblem(
        "A notebook costs {} yuan and a pen costs {} yuan. How many yuan do {} notebooks and one pen cost?",
        ((5, 15), (2, 9), (2, 8)),
        lambda a, b, c: a * c + b,
    ),
    WordProblem(
        "A rectangle is {} cm wide and {} cm long. How many centimetres is its perimeter?",
        ((2, 30), (31, 60)),
        lambda a, b: 2 * (a + b),
    ),
    WordProblem(
        "Lin scores {}, {} and {} points in three games. What is the mean number of points a game?",
        ((4, 20), (4, 20), (4, 20)),
        lambda a, b, c: Fraction(a + b + c, 3),
    ),
    WordProblem(
        "A tank holds {} litres. A tap fills {} litres a minute. How many minutes does it take to fill the tank?",
        ((20, 200), (2, 12)),
        lambda a, b: Fraction(a, b),
    ),
    WordProblem(
        "A shop has {} apples. It sells {} in the morning and twice as many in the afternoon. How many are left?",
        ((70, 150), (5, 20)),
        lambda a, b: a - 3 * b,
    ),
)


def word_problems(split: str = "train", n: int = 12, seed: int = 0) -> list[Row]:
    """`n` different word problems from one split, each with a system message that asks for think and answer tags.

    The stories take turns, so `n=12` shows each once. Answers are exact: "7", or "3/4" where the result is a fraction;
    `math_reward` takes 0.75 for that as well.
    """
    _check(split, n, MAX_WORD_PROBLEMS)
    rng = random.Random(f"word/{split}/{seed}")
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < n:
        story = len(seen) % len(WORD_PROBLEMS)
        numbers = tuple(rng.randint(low, high) for low, high in WORD_PROBLEMS[story].ranges)
        if split_of("word", story, *numbers) == split:
            seen[(story, *numbers)] = None
    return [_word_row(*key) for key in seen]


def has_thinking(text: str) -> bool:
    """Whether a response holds some reasoning: a think tag pair with more than white space between."""
    found = _THINK.search(text)
    return bool(found and found.group(1).strip())


def _user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def _word_row(story: int, *numbers: int) -> Row:
    problem = WORD_PROBLEMS[story]
    system = [{"role": "system", "content": THINK_SYSTEM_PROMPT}]
    question = problem.story.format(*numbers)
    return {"prompt": system + _user(question), "answer": str(problem.solve(*numbers)), "numbers": list(numbers)}


def _check(split, n, limits: dict[str, int]) -> None:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"n must be an int, got {type(n).__name__}")
    if not 1 <= n <= limits[split]:
        raise ValueError(f"n must be from 1 to {limits[split]} for split {split!r}, got {n}")
