"""Rewards that compare numbers exactly and without a library: 0.5 is 1/2, and "4 or 5" is not 4.

They stand between `accuracy_reward`, which compares texts, and `math_reward`, which reads any expression. They differ
in where the number may stand: alone in the answer block, or anywhere as the last number.
"""

import re
from fractions import Fraction
from typing import Any

from grpo_lab.base.checks import InputError
from grpo_lab.rewards.mathematics.quantities import last_number, number_alone, quantity_in
from grpo_lab.rewards.mathematics.tidy import answer_in_block
from grpo_lab.rewards.text import LONGEST_ANSWER, completion_text, expected_texts, normalise_text

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+|[0-9]+/0*[1-9][0-9]*)")


def same_number(answer: str, expected: str) -> bool:
    r"""True if two texts are the same number, exactly: "0.5" and "1/2" are, "0.3333" and "1/3" are not.

    The whole text has to be one finished number, in any notation that `math_reward` reads: "007", "-.5", "1,000",
    "1e3", "10^3", "3/-4", "\frac{3}{-4}", "2 1/2", "50%", "三十". Nothing else may stand beside it, no unit either, and
    what is no number is equal to nothing, not even to itself.
    """
    a, b = _number_in(answer), _number_in(expected)
    return a is not None and a == b


def number_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    r"""1.0 if the last answer block after the thinking is the expected number, however it is written, else 0.0.

    r_{\mathrm{number}}(y, a) = \mathbb{1}[\hat a(y) =_{\mathbb{Q}} a] \tag{6.2}

    A text that was cut off, in its thinking or in a later block, gives no answer.

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected numbers as texts or ints, one per completion. The reward does not apply (None) where it
            is None.

    Raises:
        ValueError: if an expected text is no number; the message names the row.
    """
    numbers = _expected_numbers("number_reward", completions, answer)
    rewards: list[float | None] = []
    for y, a in zip(completions, numbers, strict=True):
        extracted = answer_in_block(completion_text(y))
        reward = float(a is not None and same_number(extracted, a))  # scalar (6.2)
        rewards.append(None if a is None else reward)
    return rewards


def last_number_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    """1.0 if the last number in the text is the expected one, else 0.0: for a model that never saw a tag.

    It is read in every notation in which `math_reward` reads a number (`last_number`): 1/2, 9,500, -$5, 1.5e3, 10^6.
    What stands behind it, such as a unit, does not count, and so 25% is both 25 and 1/4. "20 - 3" and "20-3" end with
    3: after a number or a closing bracket a minus sign is an operation. Arguments and errors are those of
    `number_reward`.
    """
    numbers = _expected_numbers("last_number_reward", completions, answer)
    pairs = zip(completions, numbers, strict=True)
    return [None if a is None else float(_number_in(a) in _values_of(completion_text(y))) for y, a in pairs]


def _values_of(text: str) -> list[Fraction]:
    number = last_number(text)
    value, _ = quantity_in(number) or (None, "")
    return [] if value is None else [value, value * 100] if "%" in number else [value]


def _expected_numbers(function: str, completions: Any, answer: Any) -> list[str | None]:
    expected = expected_texts(function, completions, answer)
    for row, a in enumerate(expected):
        if a is not None and _number_in(a) is None:
            raise InputError(f"{function}: answer[{row}]", a, "expected a number")
    return expected


def _number_in(text: str) -> Fraction | None:
    plain = normalise_text(text).replace("\N{MINUS SIGN}", "-")
    if len(plain) > LONGEST_ANSWER:
        return None
    return Fraction(plain) if _NUMBER.fullmatch(plain) else number_alone(text)  # most are plain: that is quick
