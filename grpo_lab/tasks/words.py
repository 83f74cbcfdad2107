"""Tasks in words: twelve stories whose numbers change, and four small chat tasks."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from grpo_lab.tasks.rows import THINK_SYSTEM_PROMPT, Row, asking, check_number, split_of

MAX_WORD_PROBLEMS = {"train": 3600, "test": 360}


@dataclass(frozen=True)
class WordProblem:
    """A story with numbers left open: `ranges` are inclusive, `solve` gives the exact answer."""

    story: str
    ranges: tuple[tuple[int, int], ...]
    solve: Callable[..., int | Fraction]


STORIES = (
    ("Mei has {} marbles. She buys {} more and gives {} to her brother. How many marbles has she now?",
     ((20, 60), (5, 30), (3, 19)), lambda a, b, c: a + b - c),
    ("A box holds {} eggs. A farmer fills {} boxes and has {} eggs left over. How many eggs did the hens lay?",
     ((6, 24), (3, 12), (1, 5)), lambda a, b, c: a * b + c),
    ("A train has {} coaches with {} seats each. {} seats are taken. How many seats are free?",
     ((4, 9), (30, 60), (40, 110)), lambda a, b, c: a * b - c),
    ("Tom reads {} pages a day. How many pages does he read in {} weeks?",
     ((8, 60), (2, 9)), lambda a, b: 7 * a * b),
    ("A rope of {} metres is cut into {} equal pieces. How many metres long is each piece?",
     ((3, 60), (2, 12)), lambda a, b: Fraction(a, b)),
    ("A bag has {} red and {} blue balls. One ball is drawn at random. What is the probability that it is red?",
     ((1, 30), (1, 30)), lambda a, b: Fraction(a, a + b)),
    ("Ana is {} years old. Her mother is {} times as old. How old will the mother be in {} years?",
     ((6, 14), (2, 5), (2, 20)), lambda a, b, c: a * b + c),
    ("A notebook costs {} yuan and a pen costs {} yuan. How many yuan do {} notebooks and one pen cost?",
     ((5, 15), (2, 9), (2, 8)), lambda a, b, c: a * c + b),
    ("A rectangle is {} cm wide and {} cm long. How many centimetres is its perimeter?",
     ((2, 30), (31, 60)), lambda a, b: 2 * (a + b)),
    ("Lin scores {}, {} and {} points in three games. What is the mean number of points a game?",
     ((4, 20), (4, 20), (4, 20)), lambda a, b, c: Fraction(a + b + c, 3)),
    ("A tank holds {} litres. A tap fills {} litres a minute. How many minutes does it take to fill the tank?",
     ((20, 200), (2, 12)), lambda a, b: Fraction(a, b)),
    ("A shop has {} apples. It sells {} in the morning and twice as many in the afternoon. How many are left?",
     ((70, 150), (5, 20)), lambda a, b: a - 3 * b),
)  # fmt: skip
WORD_PROBLEMS = tuple(WordProblem(*story) for story in STORIES)


def word_problems(split: str = "train", n: int = 12, seed: int = 0) -> list[Row]:
    """`n` different word problems from one split, each with a system message that asks for think and answer tags.

    The stories take turns, so `n=12` shows each once. Answers are exact: "7", or "3/4" where the result is a fraction;
    `math_reward` takes 0.75 for that as well.
    """
    check_number(n, split, MAX_WORD_PROBLEMS)
    rng = random.Random(f"word/{split}/{seed}")
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < n:
        story = len(seen) % len(WORD_PROBLEMS)
        numbers = tuple(rng.randint(low, high) for low, high in WORD_PROBLEMS[story].ranges)
        if split_of("word", story, *numbers) == split:
            seen[(story, *numbers)] = None
    return [_word_row(*key) for key in seen]


def _word_row(story: int, *numbers: int) -> Row:
    problem = WORD_PROBLEMS[story]
    prompt = asking(problem.story.format(*numbers), THINK_SYSTEM_PROMPT)
    return {"prompt": prompt, "answer": str(problem.solve(*numbers)), "numbers": list(numbers)}


def chat_tasks() -> list[Row]:
    """Four small chat tasks in Chinese; a response is right when it contains the expected text."""
    pairs = {
        "czq是谁": "czq是神！",
        "2+2": "4",
        "把“我喜欢机器学习”翻译成英文": "I like machine learning",
        "只回答：通义千问": "通义千问",
    }
    return [{"prompt": asking(question), "answer": answer} for question, answer in pairs.items()]
