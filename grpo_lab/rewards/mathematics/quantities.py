r"""Reading a text as an exact number with its unit: "-3 1/2", "1.5 \times 10^3", "48平方厘米", "三十", "$1,234.50".

A sum that is not carried out, two numbers, and a number with a doubt ("about 5") are not read as a number. A unit may
be missing; the table of units shows whether two units contradict each other. Things that are counted (5 apples, 6个
苹果) are in no table: any single English plural is accepted, and so are Chinese words that do not change the number.

`last_number` reads a number in a running text in the same notations.
"""

import re
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from grpo_lab.rewards.mathematics.tidy import given_answer, tidy, was_cut_off
from grpo_lab.rewards.text import MAX_ANSWER_LENGTH, after_thinking

# Each line of units.txt holds the names of one unit.
_UNIT_LINES = [line.split() for line in Path(__file__).with_name("units.txt").read_text(encoding="utf-8").splitlines()]
_UNITS = {name: names[0] for names in _UNIT_LINES for name in names}
# Text before a unit, text after it, and the power of the unit that they mean.
_POWERS = (("平方", "", 2), ("square ", "", 2), ("", "^2", 2), ("立方", "", 3), ("cubic ", "", 3), ("", "^3", 3))
_UNITS |= {
    prefix + name + suffix: f"{unit}^{power}" for name, unit in _UNITS.items() for prefix, suffix, power in _POWERS
}
_COUNTED_THING = re.compile(r" [a-z]{3,}s| ?[\u4e00-\u9fff]{1,12}")
# Words after a number that change the number, or express a doubt about it. The pattern requires an s at the end of an
# English word, which is therefore left out here (sixe, plu).
_NOT_COUNTED = re.compile(
    r"^ (?:one|two|three|four|five|sixe|seven|eight|nine|ten|[a-z]+teen|[a-z]+tie|dozen|hundred|thousand|[a-z]+illion|"
    r"hal[fv]e?|third|quarter|[a-z]+th|percent|plu|minu|perhap)s$|左右|以[上下]|上下|分之|"
    r"[零一二两三四五六七八九十百千万亿半或和与至约非否不另还加减乘除余比点折成多几等于又]"
)

_DIGITS = "零一二三四五六七八九"


def _chinese_words(n: int) -> str:
    """Return a number below 10,000 in Chinese words, in the full form: 117 is 一百一十七, and 105 is 一百零五."""
    thousands, hundreds, tens, units = (n // 10**power % 10 for power in (3, 2, 1, 0))
    text = (_DIGITS[thousands] + "千") * (thousands > 0)
    text += (_DIGITS[hundreds] + "百" if hundreds else "零" * (thousands > 0)) * (n % 1000 > 0)
    text += (_DIGITS[tens] + "十" if tens else "零" * (hundreds > 0)) * (n % 100 > 0)
    return text + _DIGITS[units] * (units > 0)


# The usual Chinese words of each number up to 9999 (三, 十七, 三十, 一百零五), with the number.
_CHINESE_NUMBERS = (
    {_chinese_words(n): n for n in range(1, 10_000)}
    | {_chinese_words(n)[1:]: n for n in range(10, 20)}
    | {"零": 0, "两": 2}
)
# 千 before 米 or 克 belongs to the unit: 五千克 is 5 kg.
_NUMERALS = f"(?:[{_DIGITS}两十百万]|千(?![米克]))+"
CURRENCY = "$¥€£₩₹₽₺₫฿₴₱"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?) ?(?:(?P<currency>[{CURRENCY}]) ?(?P<inner>[+-]?))? ?(?:"
    r"(?:(?P<whole>[0-9]+)(?: ?又 ?| ))?(?P<top>[+-]?[0-9]+) ?[/:] ?(?P<bottom>[+-]?0*[1-9][0-9]*)"
    r"|(?P<start>[0-9]*\.[0-9]*)(?:\\overline *\{ *|\\dot *\{|\()(?P<repeated>[0-9]{1,20}) *[)}]"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)|"
    rf"(?P<chinese>(?:{_NUMERALS}又)?{_NUMERALS}分之{_NUMERALS}|{_NUMERALS}点[{_DIGITS}]+|{_NUMERALS}))"
    r"(?P<percent> ?[%‰])?(?P<tail>.*)"
)
# Separated thousands: 1,234,567 and 1 234 567.
_THOUSANDS = re.compile(r"(?<![0-9,.] )(?<![0-9,.])[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?![0-9/,]| [0-9])")
# Separated thousands in other notations: 1'234'567, 1_234_567, 1.234.567,00.
_OTHER_THOUSANDS = re.compile(
    r"(?<![0-9,.'’_])[0-9]{1,3}(?:(['’_])[0-9]{3}(?:\1[0-9]{3})*|(?:\.[0-9]{3})+,[0-9]+)(?![0-9,'’_])"
)
# Pairs of a pattern and its replacement: brackets around a number, fractions and powers of ten in plain notation.
_PLAIN_NOTATIONS = (
    (re.compile(r"^([+-]?) ?(?:\(([^(){},+-]*)\)|\{([^(){},+-]*)\})$"), r"\1\2\3"),
    (re.compile(r"^\(([^(){},]*)\)$"), r"\1"),
    (re.compile(r"^\(([0-9]+)\)(?=_)"), r"\1"),
    (re.compile(r"(?<=[0-9])(?= *\\frac)"), " "),
    (re.compile(r"\\frac *(?:\{ *([+-]?[0-9]+) *\}|([0-9])) *(?:\{ *([+-]?[0-9]+) *\}|([0-9]))"), r"\1\2/\3\4"),
    (re.compile(r"(?<=[0-9.]) *(?:\\times|\\cdot|[*xX]) *10 *\^ *(?:\{ *([+-]?[0-9]+) *\}|([+-]?[0-9]+))"), r"e\1\2"),
    (
        re.compile(
            r"(?<![0-9.a-zA-Z^_])(?<![\^_]\{)10 *\^ *(?:\{ *([+-]?[0-9]{1,3}) *\}|([+-]?[0-9]{1,3}))(?![0-9.^!])"
        ),
        r"1e\1\2",
    ),
)
_BASE = re.compile(r"^(?: ?_|,? ?(?:in )?base )\{?([0-9]{1,2})\}?$|^ ?\((?:in )?base ([0-9]{1,2})\)$")
_MARKUP = re.compile(r"(?<![0-9a-zA-Z)])(?:\*\*|__)|(?:\*\*|__)(?![0-9a-zA-Z(])|`")
# Text before a number that is only a part of an expression, such as a root or a logarithm.
_EXPRESSION_BEFORE = re.compile(r"\\(?:sqrt|overline|ln|log|sin|cos|tan)(?: ?_\S+)? *[{(]?$|[a-zA-Z})] ?/ ?$")
# A number in a running text that is not an index, an exponent or a part of another number.
_NUMBER_IN_TEXT = re.compile(
    r"(?<![0-9.])(?<![\^_])(?<![\^_][+{-])(?<![\^_]\{[+-])"
    rf"(?P<number>[+-]?(?:[{CURRENCY}] ?[+-]?)?(?:"
    r"[0-9]*\.[0-9]*+(?:\\overline ?\{ ?[0-9]+ ?\}|\([0-9]+\))"
    r"|(?:[0-9]++(?: ?又 ?| ))?+[0-9]++(?: ?/ ?|:)[+-]?0*[1-9][0-9]*+"
    r"|(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?+|\.[0-9]++)"
    r"(?: ?[%‰])?)"
    # A continuation that changes the number, or makes it a part of an expression.
    r"(?P<continuation>\.[0-9]|[eE][+-]?[0-9]| ?[/^:] ?[({+-]*[0-9]| ?\\(?:pi|sqrt)|\.?\\overline"
    r"|(?:k|(?-i:M)| ?[mb]n)\b|(?<=\b0)x[0-9a-f]+\b"
    r"| ?(?:[万亿百]|千(?![米克])|(?:hundred|thousand|dozen|[a-z]{1,5}illion)s?\b))?",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def quantity_in(text: str) -> tuple[Fraction, str] | None:
    """Return the number that a tidy text states, and its unit or ""; None if the text is not exactly one number."""
    if len(text) > MAX_ANSWER_LENGTH:
        return None
    if (match := _NUMBER.fullmatch(_plain_notation(text))) is None:
        return None
    value, unit = _value_of(match), unit_of(match["tail"])
    has_two_units = match["currency"] and match["tail"]
    has_two_signs = match["sign"] and match["inner"]
    if value is None or unit is None or has_two_units or has_two_signs:
        return None
    sign = -1 if "-" in (match["sign"], match["inner"]) else 1
    divisor = {"%": 100, "‰": 1000}.get((match["percent"] or "").strip(), 1)
    return value * Fraction(sign, divisor), _UNITS.get(match["currency"], match["currency"] or unit)


def _plain_notation(text: str) -> str:
    """Return a tidy text with plain fractions and powers of ten ("1/2", "1e3"), and without thousands separators."""
    for pattern, plain in _PLAIN_NOTATIONS:
        text = pattern.sub(plain, text).strip()
    return _join_thousands(text)


def number_alone(text: str) -> Fraction | None:
    """Return the number that a text states in any notation; 5% is 1/20.

    The result is None if the text has a unit, a currency, a base or other text.
    """
    match = _NUMBER.fullmatch(_plain_notation(tidy(text))) if len(text) <= MAX_ANSWER_LENGTH else None
    is_alone = match is not None and not match["currency"] and not match["tail"]
    number = quantity_in(tidy(text)) if is_alone else None
    return number[0] if number else None


def _join_thousands(text: str) -> str:
    """Return a text without the separators between thousands, and with a point before decimals."""
    text = _OTHER_THOUSANDS.sub(lambda number: re.sub("['’_]|[.](?=.*,)", "", number[0]).replace(",", "."), text)
    return _THOUSANDS.sub(lambda number: re.sub("[, ]", "", number[0]), text)


def _value_of(match: re.Match) -> Fraction | None:
    """Return the value of a match of _NUMBER, without its sign and per cent.

    The result is None for an improper mixed number such as 3 3/2, and for unusual Chinese words.
    """
    if decimal := match["decimal"]:
        return Fraction(decimal)
    if repeated := match["repeated"]:  # 0.1(6) is (16 - 1)/90
        digits = match["start"].partition(".")[2]  # decimals before the repeating digits
        period = Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(digits))
        return Fraction(match["start"].rstrip(".") or 0) + period
    if chinese := match["chinese"]:
        return _value_of_chinese(chinese)
    return _mixed(int(match["whole"] or 0), Fraction(int(match["top"]), int(match["bottom"])))


def _mixed(whole: int, fraction: Fraction) -> Fraction | None:
    """Return the value of a mixed number; None unless its fraction is below 1: 3 3/2 is not a mixed number."""
    return whole + fraction if 0 <= fraction < 1 or not whole else None


def _value_of_chinese(text: str) -> Fraction | None:
    """Return the value of a number in Chinese words; None for unusual words such as 一百二 and 三四."""
    whole, point, decimals = text.partition("点")
    if point:
        value = _whole_chinese(whole)
        digits = "".join(str(_DIGITS.index(digit)) for digit in decimals)
        return None if value is None else value + Fraction(int(digits), 10 ** len(digits))
    front, fraction_mark, top = text.partition("分之")
    if not fraction_mark:
        number = _whole_chinese(text)
        return None if number is None else Fraction(number)
    whole, _, bottom = front.rpartition("又")
    whole_value = _whole_chinese(whole) if whole else 0
    numerator = _whole_chinese(top) if top else 0
    denominator = {"百": 100, "千": 1000, "万": 10_000}.get(bottom) or _whole_chinese(bottom)
    if whole_value is None or numerator is None or not denominator:
        return None
    return _mixed(whole_value, Fraction(numerator, denominator))


def _whole_chinese(text: str) -> int | None:
    """Return the value of a whole number below 10^8 in Chinese words; None for other words."""
    text = re.sub("两(?=[千百万])", "二", text)
    high, ten_thousand, low = text.rpartition("万")
    if not ten_thousand:
        return _CHINESE_NUMBERS.get(text)
    low_value = _CHINESE_NUMBERS.get(low.removeprefix("零"), 0) if low else 0
    # A low part below 1000 is said with 零 before it, a larger one without.
    is_low_part_right = 0 < low_value < 1000 if low.startswith("零") else not low or low_value >= 1000
    high_value = _CHINESE_NUMBERS.get(high)
    return high_value * 10_000 + low_value if is_low_part_right and high_value else None


def unit_of(tail: str) -> str | None:
    """Return the unit that the text after a number names.

    Returns:
        The first name of the unit in units.txt, or "base 5" for a base: 123_5 may be written 123, but is not 123_6. ""
        without a unit, and for things that are counted. None for any other text.
    """
    if base := _BASE.match(tail):
        return f"base {int(base[1] or base[2])}"
    tail = re.sub(r"^ ?\((.*)\)$", r" \1", tail).lower().rstrip()
    text = re.sub(r" ?\^?\{?([23])\}?$", r"^\1", tail.strip())
    if unit := _UNITS.get(text) or _UNITS.get(text.removesuffix("s")):
        return unit
    is_counted = _COUNTED_THING.fullmatch(tail) and not _NOT_COUNTED.search(tail)
    return "" if not tail or is_counted else None


def last_number(text: str) -> str:
    """Return the number that a text gives as its answer, without its unit: "-3", "1000", "1/2"; "" without a number.

    If the answer block, the box or the whole text is a number, this number is returned. Otherwise it is the last number
    of the text. If the last number is a part of an expression (2^10, 5 million) or has no value (1/0), the result is
    "". It is also "" if the text was cut off in its thinking, in a box, or in an answer block after another one.
    """
    text = after_thinking(text)
    # A single answer tag that is not closed is ignored: the number is then read from the text.
    if was_cut_off(text) and re.search(r"</answer>|\\boxed", text):
        return ""
    if quantity_in(answer := tidy(given_answer(text) or text[: MAX_ANSWER_LENGTH + 1])):
        if not re.search("[0-9]", answer):  # a number in Chinese words, such as 三十
            return answer
        text = answer
    text = _tidy_running_text(text)
    *_, last = [None, *(match for match in _NUMBER_IN_TEXT.finditer(text) if not _is_in_word(match))]
    if last is None or last["continuation"] or _EXPRESSION_BEFORE.search(text[: last.start()]):
        return ""
    preceding = text[: last.start()].rstrip()[-1:]
    is_operation = preceding.isdigit() or preceding in tuple(")]}%")
    number = last["number"].lstrip("+-") if is_operation else last["number"]
    # 2 3/2 is not a mixed number: then the number is 3/2.
    return number if quantity_in(number) else number.rpartition(" ")[2]


def _is_in_word(match: re.Match) -> bool:
    """Return True if a number has letters on both sides, such as the 2 of H2O."""
    preceding, following = match.string[: match.start()], match.string[match.end() :]
    is_followed = following[:1].isascii() and following[:1].isalpha()
    return is_followed and bool(re.search(r"(?<![\\a-zA-Z])[a-zA-Z]+$", preceding[-20:]))


def _tidy_running_text(text: str) -> str:
    """Tidy a running text.

    In a running text, unlike in an answer, a dash may separate words, ** marks bold type, and a full-width comma
    separates numbers.
    """
    text = _MARKUP.sub(" ", text.replace("—", " , ").replace("，", ", "))
    text = tidy.__wrapped__(re.sub("(?:负|零下|(?i:\\bminus|\\bnegative) )(?=[0-9$])", "-", text))
    for pattern, plain in _PLAIN_NOTATIONS[1:]:
        text = pattern.sub(plain, text)
    return _join_thousands(text)
