"""Rewards that compare numbers exactly and without a library: 0.5 is 1/2, and "4 or 5" is not 4.

`accuracy_reward` compares texts, and `math_reward` any mathematical expression; the rewards here compare numbers.
`number_reward` expects the number alone in the answer block. `last_number_reward` takes the last number of the text.
"""

from fractions import Fraction
from typing import Any

from grpo_lab.base.checks import InputError
from grpo_lab.rewards.argument_checks import expected_texts
from grpo_lab.rewards.mathematics.extraction import extract_block_answer
from grpo_lab.rewards.mathematics.quantities import parse_number, parse_quantity
from grpo_lab.rewards.mathematics.running_text import last_number
from grpo_lab.rewards.text import completion_text


def same_number(answer: str, expected: str) -> bool:
    r"""Return True if two texts are exactly the same number: "0.5" and "1/2" are, "0.3333" and "1/3" are not.

    Each text has to be a single number, in any notation that `math_reward` reads: "007", "-.5", "1,000", "1e3", "10^3",
    "3/-4", "\frac{3}{-4}", "2 1/2", "50%", "三十". It may contain nothing else, not even a unit. A text that is not
    such a number is equal to no text, not even to itself.
    """
    a, b = parse_number(answer), parse_number(expected)
    return a is not None and a == b


def number_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    r"""Return 1.0 if the last answer block after the thinking is the expected number in any notation, else 0.0.

    r_{\mathrm{number}}(y, a) = \mathbb{1}[\hat a(y) =_{\mathbb{Q}} a] \tag{6.2}

    A completion that was cut off in its thinking, or in a later answer block, has no answer and earns 0.0.

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected numbers as texts or ints, one per completion. If an entry is None, the reward does not
            apply to that completion, and None is returned for it.
        kwargs: Other columns, unused.

    Raises:
        ValueError: if an expected text is not a number; the message names the row.
    """
    numbers = _expected_numbers("number_reward", completions, answer)
    rewards: list[float | None] = []
    for y, a in zip(completions, numbers, strict=True):
        extracted = extract_block_answer(completion_text(y))
        reward = float(a is not None and same_number(extracted, a))  # scalar (6.2)
        rewards.append(None if a is None else reward)
    return rewards


def last_number_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    """Return 1.0 if the last number in the completion is the expected number, else 0.0.

    This reward is for a model that was never trained on answer tags. `last_number` reads the number, in every notation
    in which `math_reward` reads one: 1/2, 9,500, -$5, 1.5e3, 10^6. Text after the number, such as a unit, is ignored;
    so 25% matches both 25 and 1/4. "20 - 3" and "20-3" end with 3: after a number or a closing bracket a minus sign is
    an operation. Arguments and errors are the same as for `number_reward`.
    """
    numbers = _expected_numbers("last_number_reward", completions, answer)
    pairs = zip(completions, numbers, strict=True)
    return [None if a is None else float(parse_number(a) in _last_values(completion_text(y))) for y, a in pairs]


def _last_values(text: str) -> list[Fraction]:
    """Return the values that the last number of a text may have: two for a percentage, none without a number."""
    number = last_number(text)
    quantity = parse_quantity(number)
    if quantity is None:
        return []
    return [quantity.value, quantity.value * 100] if "%" in number else [quantity.value]


def _expected_numbers(function: str, completions: Any, answer: Any) -> list[str | None]:
    expected = expected_texts(function, completions, answer)
    for row, a in enumerate(expected):
        if a is not None and parse_number(a) is None:
            raise InputError(f"{function}: answer[{row}]", a, "expected a number")
    return expected
