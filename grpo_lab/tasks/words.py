"""Word problems: twelve stories with random numbers, each in English and in Chinese (words.toml)."""

import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from grpo_lab.base.checks import check_choice
from grpo_lab.tasks.rows import THINK_SYSTEM_PROMPTS, Row, chat_messages, check_problem_count, split_of

MAX_WORD_PROBLEMS = {"train": 3600, "test": 360}


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
STORIES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
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
