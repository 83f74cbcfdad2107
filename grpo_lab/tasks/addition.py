"""The task "sums": sums of three two-digit numbers, such as "17+58+42=?"."""

import random

from grpo_lab.tasks.rows import Row, chat_messages, check_problem_count, split_of

MIN_OPERAND, MAX_OPERAND = 10, 99
MAX_PROBLEMS = {"train": 500_000, "test": 50_000}


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
