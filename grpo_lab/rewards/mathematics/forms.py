r"""Which form an answer may have, decided before anything is computed.

Where one number is expected, one finished number has to be given. Most answers are judged here, exactly and at once;
the rest becomes questions for Math-Verify, all of which have to be answered "equal".
"""

import re
from typing import NamedTuple

from grpo_lab.rewards.mathematics.quantities import Quantity, quantity_in, same_quantity
from grpo_lab.rewards.mathematics.sizes import LARGEST, is_too_large
from grpo_lab.rewards.mathematics.tidy import tidy, without_text
from grpo_lab.rewards.mathematics.units import unit_of
from grpo_lab.rewards.text import loose_text

LONGEST = 1000  # characters; an answer may be longer only if the expected one is
DEEPEST = 40  # brackets within brackets

_EQUALS = re.compile(r"(?<![\\<>!=:])=(?!=)|\\approx")
# x, x_1, AB, \angle A, P(A), 总价: no number in front, and nothing is computed.
_NAME = re.compile(
    r"(?:\\(?:angle|triangle|overline|vec|hat|theta|alpha|beta|gamma|lambda|mu|phi|omega|Delta|max|min|[sc]in|cos|tan)"
    r"(?![a-zA-Z])|[A-Za-z\u4e00-\u9fff'|∠△(){} ]|_[A-Za-z0-9]|_\{[A-Za-z0-9 \\]+\}){1,30}"
)
_DENIED = re.compile(r"\b(?:not|nor|or|if|unless|never|no)\b|[不非若或]")
# Math-Verify would read a word as a product of letters, "lube" as equal to "blue", and 8:00 as divided by zero.
_WORDS = re.compile(r"[A-Za-z]{4,}(?: [A-Za-z]+)*|[\u4e00-\u9fff]+|[0-9]{1,2}(?::[0-9]{2}){1,2}")
_RELATION = re.compile(r"\\(?:le|ge|leq|geq|lt|gt|leqslant|geqslant)(?![a-zA-Z])|[<>]=?")
_BETWEEN = re.compile(r",|;|\\text\{\s*(?:or|and)\s*\}|(?<![a-zA-Z])(?:or|and)(?![a-zA-Z])|或|且|\\cup")
_CALCULATION = re.compile(r"(?:[0-9.+\-*/()^!{}\[\] ]|\\(?:times|cdot|div|frac|sqrt|binom))+")
# A power, root, factorial, logarithm or binomial of numbers: one thing, which stands for its value.
_FUNCTIONS = re.compile(r"\\(?:sqrt|log|ln|binom|frac)(?![a-zA-Z])")
_ONE = re.compile(r"-?(?:[0-9.]+(?:!|\s*\^.+)|\(-?[0-9./]+\)\s*\^.+|\\[a-z]+.*)")
_OPERATED = re.compile(
    r"[*]|\\times|\\cdot|\\div|(?<=[^\s{(\[^])\s*[+-]|[0-9)}]\s*\\(?!frac)[a-z]|(?<![_0-9])[0-9]+\s*\(|\)\s*[(0-9]"
)
_BEFORE_UNIT = r"(.*[0-9})]|.*\\pi)\s*"
_UNIT = re.compile(
    _BEFORE_UNIT + r"(?:\\(?:text|mathrm)\{([^{}]+)\}|([a-z]{2,}(?: [a-z]{2,})*|[\u4e00-\u9fff]+|°))(\^\{?[23]\}?)?"
)


class Judged(NamedTuple):
    """A verdict, "equal" or "different"; or None, and the pairs (expected, given) that all have to be equal."""

    verdict: str | None
    pairs: tuple[tuple[str, str], ...] = ()


def judge_form(expected: str, given: str) -> Judged:
    """What can be said of an answer without computing, and what has to be computed for the rest."""
    too_long = len(given) > max(LONGEST, 2 * len(expected)) or _depth(given) > DEEPEST
    gold, answer = tidy(expected), "" if too_long else tidy(given)
    name, number = _named_number(gold)
    return _against_number(name, number, gold, answer) if number else _against_expression(gold, answer)


def _against_number(name: str, number: Quantity, gold: str, answer: str) -> Judged:
    # Only a rounded number is given as about so much.
    if "\\approx" in answer and not (number.rounded or "\\approx" in gold):
        return Judged("different")
    parts = _parts(answer)
    if parts and _is_name(parts[0]):
        if len(parts) > 1 and name and _squeezed(parts[0]) != name:
            return Judged("different")
        parts = parts[1:]
    said = [quantity_in(part) for part in parts]
    asked = [part for part, quantity in zip(parts, said, strict=True) if quantity is None]
    refused = any(quantity and not same_quantity(quantity, number) for quantity in said)
    refused |= number.value < 10**LARGEST and any(map(is_too_large, asked))
    if not parts or refused or not all(map(_is_calculation, [part for part in asked if part is not parts[-1]])):
        return Judged("different")
    if said[-1] is None and not (_is_one_function(parts[-1]) or _may_be_rounded_to(number, parts[-1])):
        return Judged("different")
    return Judged(None, tuple((number.latex(), part) for part in asked)) if asked else Judged("equal")


def _against_expression(gold: str, answer: str) -> Judged:
    """Words are compared as text. Whether an expected expression can be read at all is for Math-Verify to say."""
    if _WORDS.fullmatch(without_text(gold)):
        same = loose_text(without_text(gold)) == loose_text(without_text(answer))
        return Judged("equal" if same else "different")
    expected, unit = _without_unit(gold)
    given, its_unit = _without_unit(answer)
    number = quantity_in(answer)
    if number is not None:
        given, its_unit = number.latex(), number.unit
    set_for_tuple = {_brackets(expected), _brackets(given)} == {"(", "{"}
    if (unit and its_unit and unit != its_unit) or set_for_tuple or _is_unsolved(given):
        given = ""
    return Judged(None, ((expected, given),))


def _named_number(gold: str) -> tuple[str, Quantity | None]:
    """Of "x = 4 cm" the name and the number; no number where the expected answer is another thing."""
    parts = _parts(gold)
    name = _squeezed(parts[0]) if len(parts) > 1 and _is_name(parts[0]) else ""
    between = parts[1:-1] if name else parts[:-1]
    number = quantity_in(parts[-1]) if all(map(_is_calculation, between)) else None
    return name, number


def _parts(text: str) -> list[str]:
    """Of a chain of equations its sides, the result last: "4 = x" is turned round."""
    parts = [part.strip() for part in _EQUALS.split(re.sub(r"^(?:=|\\approx)", "", text))]
    if len(parts) == 2 and _is_name(parts[1]) and not _is_name(parts[0]):
        parts.reverse()
    return parts


def _is_name(text: str) -> bool:
    named = len(text) <= 40 and _NAME.fullmatch(without_text(text)) and not _DENIED.search(text)
    return bool(named) and quantity_in(text) is None


def _squeezed(text: str) -> str:
    return re.sub(r"[\s{}]", "", without_text(text))


def _is_calculation(text: str) -> bool:
    return _CALCULATION.fullmatch(text) is not None


def _is_one_function(text: str) -> bool:
    if not _ONE.fullmatch(text) or _OPERATED.search(text):
        return False
    left = _FUNCTIONS.sub("", text)
    fractions = re.findall(r"\\frac|/", text)
    simple = re.findall(r"\\frac\{-?[0-9]+\}\{[0-9]+\}|(?<![0-9!)}])[0-9]+/[0-9]+(?![0-9!^])", text)
    return not re.search(r"[A-Za-z\\]", left) and len(fractions) == len(simple)


def _may_be_rounded_to(number: Quantity, text: str) -> bool:
    r"""1.414214 stands for \sqrt{2}, and 0.5 does not stand for a calculation."""
    many_places = number.rounded and (number.value * 10**5).denominator != 1
    return many_places and not _is_calculation(text.replace("\\sqrt", ""))


def _is_unsolved(text: str) -> bool:
    """Whether an inequality leaves its unknown to be worked out: 2x > 6 does, x > 3 and 3 < x do not."""
    pieces = [p for p in _BETWEEN.split(text) if _RELATION.search(p)]
    return any(not any(_is_name(side.strip()) for side in _RELATION.split(piece)) for piece in pieces)


def _brackets(text: str) -> str:
    return text.lstrip("\\")[:1] if text.endswith((")", "}")) and "," in text else ""


def _without_unit(text: str) -> tuple[str, str]:
    r"""An expression and the unit behind it: "2\pi \text{ cm}", "5\sqrt{3}厘米"."""
    found = _UNIT.fullmatch(text)
    if not found:
        return text, ""
    unit = unit_of((found[2] or found[3]).strip() + (found[4] or ""))
    known = unit or (unit == "" and found[3] and not found[3].isascii())
    return (found[1], unit) if known else (text, "")


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text[: 2 * LONGEST]:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest
