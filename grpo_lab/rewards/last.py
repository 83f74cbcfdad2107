r"""The last number of a completion is its answer, whatever stands around it: for a model that never saw a tag.

Where it departs from the other rewards, on purpose: nothing has to claim the number. That is lenient, and it can be:
of all the numbers in a text only one counts, so a list of guesses gains nothing.
"""

import re
from typing import Any

from grpo_lab.rewards.exact import check_numbers, same_number
from grpo_lab.rewards.text import completion_text, expected_texts

_SIGNS = "-\N{MINUS SIGN}"
_NUMBER = re.compile(r"(?<![\d.])[-\N{MINUS SIGN}]?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?!\d)", re.ASCII)


def last_number_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    """1.0 if the last number in the text is the expected one, else 0.0.

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected numbers as texts or ints, one a completion. The reward does not apply (None) where it is
            None.
        kwargs: other columns, unused.

    Raises:
        ValueError: if an expected text is no number; the message names the row.
    """
    expected = expected_texts("last_number_reward", completions, answer)
    check_numbers("last_number_reward", expected)
    return [
        None if a is None else float(same_number(last_number(completion_text(y)), a))
        for y, a in zip(completions, expected, strict=True)
    ]


def last_number(text: str) -> str:
    """The last number as it stands there, such as "-3", "0.5" or "1,000"; empty if there is none.

    After a number or a closing bracket a minus sign is an operation: "20 - 3" and "20-3" end with 3.
    """
    all_numbers = list(_NUMBER.finditer(text))
    if not all_numbers:
        return ""
    number, before = all_numbers[-1][0], text[: all_numbers[-1].start()].rstrip()
    return number.lstrip(_SIGNS) if before and (before[-1].isdigit() or before[-1] in ")]}") else number
