"""The task "short-sums": sums of two numbers up to 20, for a model that reads English and cannot add yet.

There are only 400 such sums, so a quarter of them is held out rather than a tenth.
"""

import random

from grpo_lab.tasks.rows import Row, chat_messages, check_problem_count, split_of

MAX_OPERAND = 20
TEST_SHARE = 0.25


def short_sum_split(a: int, b: int) -> str:
    """Return the split of a sum, which does not depend on the order of the operands."""
    return split_of("short sums", *sorted((a, b)), test_share=TEST_SHARE)


def short_sum_row(a: int, b: int) -> Row:
    """Return one sum as a row: `short_sum_row(3, 14)` asks "What is 3 + 14? Answer with the number only."."""
    return {"prompt": chat_messages(f"What is {a} + {b}? Answer with the number only."), "answer": str(a + b)}


def short_sums(split: str = "train", n: int | None = None, seed: int = 0) -> list[Row]:
    """Return `n` different sums from one split, in an order that the seed determines; None for all of them.

    The same arguments always give the same rows, and a larger `n` appends rows to those of a smaller `n`.
    """
    numbers = range(1, MAX_OPERAND + 1)
    pairs = [(a, b) for a in numbers for b in numbers if short_sum_split(a, b) == split]
    check_problem_count(1 if n is None else n, split, {split: len(pairs)})
    random.Random(f"short sums/{split}/{seed}").shuffle(pairs)
    return [short_sum_row(a, b) for a, b in pairs[:n]]
