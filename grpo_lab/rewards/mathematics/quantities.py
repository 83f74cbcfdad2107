r"""Reading a text as an exact number with its unit: "-3 1/2", "1.5 \times 10^3", "48平方厘米", "三十", "$1,234.50".

A sum that is not carried out, two numbers, and a number with a doubt ("about 5") are not read as a number.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from grpo_lab.rewards.mathematics.chinese_numbers import CHINESE_NUMBER, parse_chinese_number
from grpo_lab.rewards.mathematics.notation import normalise_notation
from grpo_lab.rewards.mathematics.units import currency_unit, parse_unit
from grpo_lab.rewards.text import MAX_ANSWER_LENGTH, normalise_text

CURRENCY_SIGNS = "$¥€£₩₹₽₺₫฿₴₱"
# A whole text that is a number. The groups "top" and "bottom" are those of a fraction.
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?) ?(?:(?P<currency>[{CURRENCY_SIGNS}]) ?(?P<inner>[+-]?))? ?(?:"
    r"(?:(?P<whole>[0-9]+)(?: ?又 ?| ))?(?P<top>[+-]?[0-9]+) ?[/:] ?(?P<bottom>[+-]?0*[1-9][0-9]*)"
    r"|(?P<start>[0-9]*\.[0-9]*)(?:\\overline *\{ *|\\dot *\{|\()(?P<repeated>[0-9]{1,20}) *[)}]"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)|"
    rf"(?P<chinese>{CHINESE_NUMBER}))"
    r"(?P<percent> ?[%‰])?(?P<tail>.*)"
)
# A whole text that Python's Fraction reads, too.
_USUAL_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+|[0-9]+/0*[1-9][0-9]*)")
# Separated thousands: 1,234,567 and 1 234 567.
_THOUSANDS = re.compile(r"(?<![0-9,.] )(?<![0-9,.])[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?![0-9/,]| [0-9])")
# Separated thousands in other notations: 1'234'567, 1_234_567, 1.234.567,00.
_OTHER_THOUSANDS = re.compile(
    r"(?<![0-9,.'’_])[0-9]{1,3}(?:(['’_])[0-9]{3}(?:\1[0-9]{3})*|(?:\.[0-9]{3})+,[0-9]+)(?![0-9,'’_])"
)
_BRACKETS_AROUND_NUMBER = re.compile(r"^([+-]?) ?(?:\(([^(){},+-]*)\)|\{([^(){},+-]*)\})$")
# Pairs of a pattern and its replacement, which is a plain notation of brackets, fractions and powers of ten.
_PLAIN_NOTATIONS = (
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


class Quantity(NamedTuple):
    """An exact number with its unit."""

    value: Fraction
    unit: str  # first name of the unit in units.txt, a currency sign, or "base 5"; "" without a unit


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity | None:
    """Return the number and the unit that a text states; None if the text is not exactly one number.

    text: A text in the notation of `normalise_notation`.
    """
    if len(text) > MAX_ANSWER_LENGTH:
        return None
    if (match := _match_number(text)) is None:
        return None
    value, unit = _absolute_value(match), parse_unit(match["tail"])
    has_two_units = match["currency"] and match["tail"]
    has_two_signs = match["sign"] and match["inner"]
    if value is None or unit is None or has_two_units or has_two_signs:
        return None
    sign = -1 if "-" in (match["sign"], match["inner"]) else 1
    divisor = {"%": 100, "‰": 1000}.get((match["percent"] or "").strip(), 1)
    return Quantity(value * Fraction(sign, divisor), currency_unit(match["currency"]) if match["currency"] else unit)


def parse_number(text: str) -> Fraction | None:
    """Return the number that a text states in any notation; 5% is 1/20.

    The result is None if the text has a unit, a currency, a base or other text.
    """
    plain_text = normalise_text(text).replace("\N{MINUS SIGN}", "-")
    if len(plain_text) > MAX_ANSWER_LENGTH:
        return None
    if _USUAL_NUMBER.fullmatch(plain_text):  # true for most texts, and quick
        return Fraction(plain_text)
    if len(text) > MAX_ANSWER_LENGTH:
        return None
    normalised = normalise_notation(text)
    match = _match_number(normalised)
    is_alone = match is not None and not match["currency"] and not match["tail"]
    quantity = parse_quantity(normalised) if is_alone else None
    return quantity.value if quantity else None


def _match_number(text: str) -> re.Match | None:
    return _NUMBER.fullmatch(with_plain_numbers(_BRACKETS_AROUND_NUMBER.sub(r"\1\2\3", text).strip()))


def with_plain_numbers(text: str) -> str:
    """Return a text with plain fractions and powers of ten ("1/2", "1e3"), and without thousands separators."""
    for pattern, replacement in _PLAIN_NOTATIONS:
        text = pattern.sub(replacement, text).strip()
    text = _OTHER_THOUSANDS.sub(lambda number: re.sub("['’_]|[.](?=.*,)", "", number[0]).replace(",", "."), text)
    return _THOUSANDS.sub(lambda number: re.sub("[, ]", "", number[0]), text)


def _absolute_value(match: re.Match) -> Fraction | None:
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
        return parse_chinese_number(chinese)
    whole, fraction = int(match["whole"] or 0), Fraction(int(match["top"]), int(match["bottom"]))
    is_improper = whole > 0 and not 0 <= fraction < 1
    return None if is_improper else whole + fraction
