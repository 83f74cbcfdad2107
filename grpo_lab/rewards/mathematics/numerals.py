"""Numbers in Chinese words: 一百一十七, 三分之一, 百分之二十五, 零点五, 3万5千."""

import re
from fractions import Fraction

_SAID = ("零〇", "一壹", "二贰两", "三叁", "四肆", "五伍", "六陆", "七柒", "八捌", "九玖")
_DIGITS = {character: digit for digit, characters in enumerate(_SAID) for character in characters}
# The largest first; 100 in words that pay ("佰") is 100.
_UNITS = {"亿": 10**8, "万": 10**4, "千": 1000, "仟": 1000, "百": 100, "佰": 100, "十": 10, "拾": 10}
_PARTS = {"百": Fraction(1, 100), "千": Fraction(1, 1000)}

NUMERALS = "".join((*_DIGITS, *_UNITS))
LONGEST_WORDS = 40  # characters; nobody says a longer one
_ARABIC = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def chinese_number(text: str) -> Fraction | None:
    """The number that a text says in Chinese words, digits among them or not; None where it says none.

    The whole text has to be the number: 三个 is none. 半 is a half, 三又二分之一 three and a half. What is left out in
    speech is not guessed: 一百二 is none.
    """
    if not text or len(text) > LONGEST_WORDS:
        return None
    if text[0] == "负":
        value = chinese_number(text[1:])
        return None if value is None or text[1] == "负" else -value
    whole, mixed, rest = text.partition("又")
    if mixed:
        a, b = _whole(whole), _ratio(rest)
        return None if a is None or b is None or not 0 < b < 1 else a + b
    if "分之" in text:
        return _ratio(text)
    return Fraction(1, 2) if text in ("半", "一半") else _decimal(text)


def _ratio(text: str) -> Fraction | None:
    """三分之一, and 百分之二十五, whose denominator is no numeral."""
    bottom, found, top = text.partition("分之")
    value = _decimal(top)
    below = _whole(bottom)
    if not found or value is None:
        return None
    if bottom in _PARTS:
        return value * _PARTS[bottom]
    return Fraction(value, below) if below and value.denominator == 1 else None


def _decimal(text: str) -> Fraction | None:
    whole, point, digits = text.partition("点")
    value = _whole(whole)
    if not point or value is None:
        return value
    if not digits or any(c not in _DIGITS for c in digits):
        return None
    return value + sum(Fraction(_DIGITS[c], 10 ** (place + 1)) for place, c in enumerate(digits))


def _whole(text: str) -> Fraction | None:
    """A number without a fraction, but for digits before a unit: 3.5万 is 35000."""
    if _ARABIC.fullmatch(text):
        return Fraction(text)
    if text and all(c in _DIGITS for c in text):
        digits = "".join(str(_DIGITS[c]) for c in text)  # 二〇二六, digit by digit
        # 三四 is not 34: it says "three or four".
        return None if len(digits) == 2 and "0" not in digits else Fraction(digits)
    for word, size in _UNITS.items():
        before, found, after = text.rpartition(word)
        if found:
            return _with_unit(before, size, after)
    return None


def _with_unit(before: str, size: int, after: str) -> Fraction | None:
    # 十七 needs nothing before it, and 一百十七 is heard.
    many = Fraction(1) if not before and size == 10 else _whole(before)
    rest = _whole(after.lstrip("零〇")) if after else Fraction(0)
    if many is None or rest is None or rest >= size or (size < 10**4 and many >= 10):
        return None
    # 一百二 is 120 to who says it; without a 零 or the next unit it cannot be told from 102.
    told = not after or size == 10 or after[0] in "零〇" or rest >= size // 10
    return many * size + rest if told else None
