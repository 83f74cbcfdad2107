"""Rewards that compare numbers exactly and without a library: 0.5 is 1/2, and "4 or 5" is not 4.

`accuracy_reward` compares texts, and `math_reward` any mathematical expression; the rewards here compare numbers.
`number_reward` expects the number alone in the answer block. `last_number_reward` takes the number that a running text
gives as its answer, such as "It is $9,500." or "so 2 1/2 cups": the last one.
"""

import re
from fractions import Fraction
from typing import Any

from grpo_lab.base.checks import InputError
from grpo_lab.rewards.functions import expected_texts
from grpo_lab.rewards.quantities import (
    ARABIC_NUMBER,
    CURRENCY,
    NUMBER_REWRITES,
    PERCENT,
    normalise_notation,
    parse_number,
    parse_quantity,
    rewrite,
)
from grpo_lab.rewards.text import (
    MAX_ANSWER_LENGTH,
    after_thinking,
    completion_text,
    extract_block_answer,
    extract_final_answer,
    is_answer_cut_off,
)

_MARKUP = re.compile(r"(?<![0-9a-zA-Z)])(?:\*\*|__)|(?:\*\*|__)(?![0-9a-zA-Z(])|`")
# Text before a number that is only a part of an expression, such as a root or a logarithm.
_EXPRESSION_BEFORE = re.compile(r"\\(?:sqrt|overline|ln|log|sin|cos|tan)(?: ?_\S+)? *[{(]?$|[a-zA-Z})] ?/ ?$")
# A unit right before a number, which is then its power: the 2 of cm2 and of m/s2.
_LENGTH_OR_TIME_BEFORE = re.compile(r"(?<![\\a-zA-Z])(?:[cdkm]?m|s|ft|yd)$")
# A number in a running text that is not an index, an exponent or a part of another number.
_NUMBER_IN_TEXT = re.compile(
    r"(?<![0-9.])(?<![\^_])(?<![\^_][+{-])(?<![\^_]\{[+-])"
    rf"(?P<number>[+-]?(?:{CURRENCY})?(?:{ARABIC_NUMBER}){PERCENT}?)"
    # A continuation that changes the number, or makes it a part of an expression.
    r"(?P<continuation>(?i:\.[0-9]|e[+-]?[0-9]| ?[/^:] ?[({+-]*[0-9]| ?\\(?:pi|sqrt)|\.?\\overline"
    r"|(?:k|(?-i:M)| ?[mb]n)\b|(?<=\b0)x[0-9a-f]+\b"
    r"| ?(?:[万亿百]|千(?![米克])|(?:hundred|thousand|dozen|[a-z]{1,5}illion)s?\b)))?"
)


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


def last_number(text: str) -> str:
    """Return the number that a text gives as its answer, without its unit: "-3", "1000", "1/2"; "" without a number.

    If the answer block, the box or the whole text is a number, this number is returned. Otherwise it is the last number
    of the text. If the last number is a part of an expression (2^10, 5 million) or has no value (1/0), the result is
    "". It is also "" if the text was cut off in its thinking, in a box, or in an answer block after another one.
    """
    text = after_thinking(text)
    # A single answer tag that is not closed is ignored: the number is then read from the text.
    if is_answer_cut_off(text) and re.search(r"</answer>|\\boxed", text):
        return ""
    answer = normalise_notation(extract_final_answer(text) or text[: MAX_ANSWER_LENGTH + 1])
    if parse_quantity(answer):
        if not re.search("[0-9]", answer):  # a number in Chinese words, such as 三十
            return answer
        text = answer
    text = _normalise_running_text(text)
    *_, last = [None, *(match for match in _NUMBER_IN_TEXT.finditer(text) if not _is_in_word(match))]
    if last is None or last["continuation"] or _EXPRESSION_BEFORE.search(text[: last.start()]):
        return ""
    if re.search(" :|: ", last["number"]):  # "Step 3: 4" is no ratio
        return ""
    preceding = text[: last.start()].rstrip()[-1:]
    is_operation = preceding.isdigit() or preceding in tuple(")]}%")
    number = re.sub("^[+-]", "", last["number"]) if is_operation else last["number"]
    if last["mixed_numerator"] and not parse_quantity(number):  # 2 3/2 is not a mixed number: then the number is 3/2
        return text[last.start("mixed_numerator") : last.end("number")]
    return number


def _is_in_word(match: re.Match) -> bool:
    """Return True for a number between letters, such as the 2 of H2O, and for the power of a unit, as in cm2."""
    preceding, following = match.string[: match.start()], match.string[match.end() :]
    if match["number"] in ("2", "3") and _LENGTH_OR_TIME_BEFORE.search(preceding[-20:]):
        return True
    is_followed = following[:1].isascii() and following[:1].isalpha()
    return is_followed and bool(re.search(r"(?<![\\a-zA-Z])[a-zA-Z]+$", preceding[-20:]))


def _normalise_running_text(text: str) -> str:
    """Return a running text in the notation of `normalise_notation`, with plain numbers.

    In a running text, unlike in an answer, a dash may separate words, ** marks bold type, and a full-width comma
    separates numbers.
    """
    text = _MARKUP.sub(" ", text.replace("—", " , ").replace("，", ", "))
    text = re.sub("(?:负|零下|(?i:\\bminus|\\bnegative) )(?=[0-9$])", "-", text)
    normalised = normalise_notation.__wrapped__(text)  # not cached, since few running texts are repeated
    return rewrite(normalised, NUMBER_REWRITES)
