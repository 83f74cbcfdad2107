"""The problems that come with the package: sums, with or without a calculator; word problems; and chats.

The word problems are twelve stories with random numbers (words.toml), and the chats are four questions (chats.toml),
each in English and in Chinese. The sums of two small numbers are in short_sums.py.
"""

import random
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from grpo_lab.base.checks import check_choice
from grpo_lab.tasks.rows import THINK_SYSTEM_PROMPTS, Row, chat_messages, check_problem_count, split_of

MIN_OPERAND, MAX_OPERAND = 10, 99
MAX_PROBLEMS = {"train": 500_000, "test": 50_000}
MAX_WORD_PROBLEMS = {"train": 3600, "test": 360}
STOP_STRINGS = ("=",)
MAX_TERM_LENGTH = 40  # characters; a model that repeats itself may write thousands
_TERM = re.compile(r"([0-9]+(?:[+*-][0-9]+)+)=$")


def addition_split(operands: list[int] | tuple[int, ...]) -> str:
    """Return the split of a sum, which does not depend on the order of the operands."""
    return split_of("addition", *sorted(operands))


def addition_row(operands: list[int] | tuple[int, ...]) -> Row:
    """Return one sum as a row: `addition_row([17, 58, 42])` asks "17+58+42=?" and expects "117"."""
    question = "+".join(map(str, operands)) + "=?"
    return {"prompt": chat_messages(question), "answer": str(sum(operands)), "operands": list(operands)}


def addition_problems(split: str = "train", n: int = 1000, seed: int = 0) -> list[Row]:
    """Return `n` different sums of three two-digit numbers from one split.

    The same arguments always give the same rows, and a larger `n` appends rows to those of a smaller `n`.
    """
    check_problem_count(n, split, MAX_PROBLEMS)
    rng = random.Random(f"addition/{split}/{seed}")
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < n:
        operands = tuple(rng.randint(MIN_OPERAND, MAX_OPERAND) for _ in range(3))
        if addition_split(operands) == split:
            seen[operands] = None
    return [addition_row(operands) for operands in seen]


def calculate(text: str) -> str:
    """Return the value of the term before the "=" at the end of a text, or "" if there is no such term."""
    term = _TERM.search(text.rstrip()[-MAX_TERM_LENGTH:])
    return str(_evaluate(term[1])) if term else ""


def calculator_replies(texts: list[str]) -> list[str]:
    """Return the calculator's reply to each text."""
    return [calculate(text) for text in texts]


def _evaluate(term: str) -> int:
    """Compute a term of whole numbers with +, - and *, in which * takes precedence."""
    total = 0
    for sign, product in re.findall(r"([+-]?)([0-9*]+)", term):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total


@dataclass(frozen=True)
class WordProblem:
    """A story with gaps for its numbers, and its solution.

    story: The story in English, with a {} for each number.
    chinese: The story in Chinese, with the numbers in the same order.
    ranges: The smallest and the largest value of each number.
    solve: A function of the numbers that returns the exact answer.
    """

    story: str
    chinese: str
    ranges: tuple[tuple[int, int], ...]
    solve: Callable[..., int | Fraction]


SOLUTIONS: dict[str, Callable[..., int | Fraction]] = {
    "marbles": lambda a, b, c: a + b - c,
    "eggs": lambda a, b, c: a * b + c,
    "seats": lambda a, b, c: a * b - c,
    "pages": lambda a, b: 7 * a * b,
    "rope": lambda a, b: Fraction(a, b),
    "balls": lambda a, b: Fraction(a, a + b),
    "mother": lambda a, b, c: a * b + c,
    "pens": lambda a, b, c: a * c + b,
    "perimeter": lambda a, b: 2 * (a + b),
    "games": lambda a, b, c: Fraction(a + b + c, 3),
    "tank": lambda a, b: Fraction(a, b),
    "apples": lambda a, b: a - 3 * b,
}
STORIES = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
WORD_PROBLEMS = tuple(WordProblem(**STORIES[name], solve=solve) for name, solve in SOLUTIONS.items())


def word_problems(split: str = "train", n: int = 12, seed: int = 0, language: str = "en") -> list[Row]:
    """Return `n` different word problems from one split, with a system message that asks for think and answer tags.

    The stories alternate, so the first twelve problems have different stories. Answers are exact, such as "7", or
    "3/4" for a fraction; `math_reward` also accepts 0.75 for it. The language, "en" or "zh", does not change the
    problems, so a problem is held out in both languages or in neither.
    """
    check_choice("language", language, THINK_SYSTEM_PROMPTS)
    check_problem_count(n, split, MAX_WORD_PROBLEMS)
    rng = random.Random(f"word/{split}/{seed}")
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < n:
        story = len(seen) % len(WORD_PROBLEMS)
        numbers = tuple(rng.randint(low, high) for low, high in WORD_PROBLEMS[story].ranges)
        if split_of("word", story, *numbers) == split:
            seen[(story, *numbers)] = None
    return [_word_row(language, *key) for key in seen]


def _word_row(language: str, story: int, *numbers: int) -> Row:
    problem = WORD_PROBLEMS[story]
    text = problem.chinese if language == "zh" else problem.story
    prompt = chat_messages(text.format(*numbers), THINK_SYSTEM_PROMPTS[language])
    return {"prompt": prompt, "answer": str(problem.solve(*numbers)), "numbers": list(numbers)}


CHATS = tomllib.loads(Path(__file__).with_name("chats.toml").read_text(encoding="utf-8"))
ANSWER_ONLY = {language: chat["instruction"] for language, chat in CHATS.items()}


def chat_tasks(language: str = "zh") -> list[Row]:
    """Return the four chat problems in a language; a response is right if it contains the expected text.

    The first one asks for a text that was in no training data. The policy never samples it, so it is never rewarded.
    """
    check_choice("language", language, ANSWER_ONLY)
    return [
        {"prompt": chat_messages(question), "answer": answer} for question, answer in CHATS[language]["answers"].items()
    ]
