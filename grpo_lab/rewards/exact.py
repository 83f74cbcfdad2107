r"""Equality of numbers, exact and without a library: 0.5 is 1/2, and "4 or 5" is not 4.

This stands between `accuracy_reward`, which compares texts, and `math_reward`, which reads any expression but needs
Math-Verify and a process of its own. Where it departs from the usual code, on purpose: nothing is picked out of a
sentence, nothing is rounded, and what is not a number is equal to nothing, not even to itself.
"""

import re
from fractions import Fraction
from typing import Any

from grpo_lab.rewards.text import completion_text, expected_texts, extract_answer, normalise_text

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+|[0-9]+/0*[1-9][0-9]*)")
LONGEST = 1000  # characters; a policy may write millions of digits, and somebody would have to multiply them


def same_number(given: str, expected: str) -> bool:
    """Whether two texts are the same number, exactly: "0.5" and "1/2" are, "0.3333" and "1/3" are not.

    Both texts are normalised first (`normalise_text`, which takes out the commas between thousands). Then the whole
    text has to be one number, written in the digits 0 to 9, with "-" before it or without:

    - whole: "7", "1000", "007";
    - decimal, with digits on both sides of the point: "-0.5", "7.0";
    - a fraction of two whole numbers, the lower one not zero: "1/2", "-6/4".

    No number is "1e3", "1_000", "50%", "$5", "1 2", "1 / 2", "1 1/2", "1.5/2", "1/0", "x = 5", "5 cm", "inf", a word or
    the empty text: nothing may stand beside the digits, and nothing is left out or worked out. A text that is no number
    is equal to nothing, not even to itself.

    Left open: "+5", ".5", "5.", the minus sign of print (U+2212), which are read here; and "1/-2", digits of other
    scripts, texts of more than 1000 characters, which are not.
    """
    a, b = _number_in(given), _number_in(expected)
    return a is not None and a == b


def number_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    r"""1.0 if the last answer block is the expected number, however it is written, else 0.0.

    r_{\mathrm{number}}(y, a) = \mathbb{1}[\hat a(y) =_{\mathbb{Q}} a] \tag{6.8}

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected numbers as texts or ints, one a completion. The reward does not apply (None) where it is
            None.
        kwargs: other columns, unused.

    Raises:
        ValueError: if an expected text is no number; the message names the row.
    """
    expected = expected_texts("number_reward", completions, answer)
    check_numbers("number_reward", expected)
    rewards: list[float | None] = []
    for y, a in zip(completions, expected, strict=True):
        given = extract_answer(completion_text(y)) or ""
        reward = float(a is not None and same_number(given, a))  # scalar (6.8)
        rewards.append(None if a is None else reward)
    return rewards


def check_numbers(function: str, expected: list[str | None]) -> None:
    """Raise ValueError for an expected text that is no number; None stands for a row without one."""
    for row, a in enumerate(expected):
        if a is not None and _number_in(a) is None:
            raise ValueError(f"{function}: answer[{row}] is {a!r}; expected a number")


def _number_in(text: str) -> Fraction | None:
    plain = normalise_text(text).replace("\N{MINUS SIGN}", "-")
    return Fraction(plain) if len(plain) <= LONGEST and _NUMBER.fullmatch(plain) else None
