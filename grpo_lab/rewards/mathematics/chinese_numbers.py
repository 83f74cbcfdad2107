"""Numbers in Chinese words: 三十, 一百零五, 三点一四, 三分之一, 二又三分之一, 百分之五."""

import re
from fractions import Fraction

_DIGITS = "零一二三四五六七八九"


def _chinese_words(n: int) -> str:
    """Return a number below 10,000 in Chinese words, in the full form: 117 is 一百一十七, and 105 is 一百零五."""
    thousands, hundreds, tens, units = (n // 10**power % 10 for power in (3, 2, 1, 0))
    text = (_DIGITS[thousands] + "千") * (thousands > 0)
    text += (_DIGITS[hundreds] + "百" if hundreds else "零" * (thousands > 0)) * (n % 1000 > 0)
    text += (_DIGITS[tens] + "十" if tens else "零" * (hundreds > 0)) * (n % 100 > 0)
    return text + _DIGITS[units] * (units > 0)


# The usual Chinese words of each number up to 9999 (三, 十七, 三十, 一百零五), with the number.
_NUMBERS_BY_WORDS = (
    {_chinese_words(n): n for n in range(1, 10_000)}
    | {_chinese_words(n)[1:]: n for n in range(10, 20)}
    | {"零": 0, "两": 2}
)
# 千 before 米 or 克 belongs to the unit: 五千克 is 5 kg.
_NUMERALS = f"(?:[{_DIGITS}两十百万]|千(?![米克]))+"
# A regular expression for a text that may be a number: a fraction or mixed number, a decimal, or a whole number.
CHINESE_NUMBER = f"(?:{_NUMERALS}又)?{_NUMERALS}分之{_NUMERALS}|{_NUMERALS}点[{_DIGITS}]+|{_NUMERALS}"


def parse_chinese_number(text: str) -> Fraction | None:
    """Return the value of a number in Chinese words; None for unusual words such as 一百二 and 三四.

    text: A text that the pattern `CHINESE_NUMBER` matches.
    """
    whole, point, decimals = text.partition("点")
    if point:
        value = _parse_whole_number(whole)
        digits = "".join(str(_DIGITS.index(digit)) for digit in decimals)
        return None if value is None else value + Fraction(int(digits), 10 ** len(digits))
    front, fraction_mark, top = text.partition("分之")
    if not fraction_mark:
        value = _parse_whole_number(text)
        return None if value is None else Fraction(value)
    whole, _, bottom = front.rpartition("又")
    whole_value = _parse_whole_number(whole) if whole else 0
    numerator = _parse_whole_number(top) if top else 0
    denominator = {"百": 100, "千": 1000, "万": 10_000}.get(bottom) or _parse_whole_number(bottom)
    if whole_value is None or numerator is None or not denominator:
        return None
    fraction = Fraction(numerator, denominator)
    is_improper = whole_value > 0 and fraction >= 1  # 二又三分之五 is not a mixed number
    return None if is_improper else whole_value + fraction


def _parse_whole_number(text: str) -> int | None:
    """Return the value of a whole number below 10^8 in Chinese words; None for other words."""
    text = re.sub("两(?=[千百万])", "二", text)
    high, ten_thousand, low = text.rpartition("万")
    if not ten_thousand:
        return _NUMBERS_BY_WORDS.get(text)
    low_value = _NUMBERS_BY_WORDS.get(low.removeprefix("零"), 0) if low else 0
    # A low part below 1000 is said with 零 before it, a larger one without.
    is_low_part_right = 0 < low_value < 1000 if low.startswith("零") else not low or low_value >= 1000
    high_value = _NUMBERS_BY_WORDS.get(high)
    return high_value * 10_000 + low_value if is_low_part_right and high_value else None
