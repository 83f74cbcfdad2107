r"""Reading a text as an exact number with its unit: "-3 1/2", "1.5 \times 10^3", "48平方厘米", "三十", "$1,234.50".

A sum that is not carried out, two numbers, and a number with a doubt ("about 5") are not read as a number.

The text is first written in one notation, LaTeX: "７½" becomes "7 1/2", and "$7\dfrac{1}{2}$." "7\frac{1}{2}".
Two names of a unit give the same unit. Things that are counted (5 apples) are in no table: any single English plural is
accepted, and so are Chinese words that do not change the number.
"""

import re
import unicodedata
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from grpo_lab.rewards.text import MAX_ANSWER_LENGTH, nfkc_text, normalise_text

_DIGITS = "零一二三四五六七八九"
# 千 before 米 or 克 belongs to the unit: 五千克 is 5 kg.
_NUMERALS = f"(?:[{_DIGITS}两十百万]|千(?![米克]))+"
# A regular expression for a text that may be a number: a fraction or mixed number, a decimal, or a whole number.
CHINESE_NUMBER = f"(?:{_NUMERALS}又)?{_NUMERALS}分之{_NUMERALS}|{_NUMERALS}点[{_DIGITS}]+|{_NUMERALS}"
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


# Each line of units.txt holds the names of one unit. Its first name stands for the unit.
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
_BASE = re.compile(r"^(?: ?_|,? ?(?:in )?base )\{?([0-9]{1,2})\}?$|^ ?\((?:in )?base ([0-9]{1,2})\)$")


def parse_unit(tail: str) -> str | None:
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


def currency_unit(sign: str) -> str:
    """Return the unit of a currency sign: the one in units.txt, or the sign itself."""
    return _UNITS.get(sign, sign)


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
        return _numbers_by_words().get(text)
    low_value = _numbers_by_words().get(low.removeprefix("零"), 0) if low else 0
    # A low part below 1000 is said with 零 before it, a larger one without.
    is_low_part_right = 0 < low_value < 1000 if low.startswith("零") else not low or low_value >= 1000
    high_value = _numbers_by_words().get(high)
    return high_value * 10_000 + low_value if is_low_part_right and high_value else None


@cache
def _numbers_by_words() -> dict[str, int]:
    """Return the usual Chinese words of each number up to 9999 (三, 十七, 三十, 一百零五), with the number."""
    numbers = {_chinese_words(n): n for n in range(1, 10_000)}
    return numbers | {_chinese_words(n)[1:]: n for n in range(10, 20)} | {"零": 0, "两": 2}


def _chinese_words(n: int) -> str:
    """Return a number below 10,000 in Chinese words, in the full form: 117 is 一百一十七, and 105 is 一百零五."""
    thousands, hundreds, tens, units = (n // 10**power % 10 for power in (3, 2, 1, 0))
    text = (_DIGITS[thousands] + "千") * (thousands > 0)
    text += (_DIGITS[hundreds] + "百" if hundreds else "零" * (thousands > 0)) * (n % 1000 > 0)
    text += (_DIGITS[tens] + "十" if tens else "零" * (hundreds > 0)) * (n % 100 > 0)
    return text + _DIGITS[units] * (units > 0)


# Characters that have the same meaning as an ASCII character or a LaTeX command.
_SIGNS = str.maketrans(
    dict.fromkeys("−–—‐‑", "-") | dict.fromkeys("！。", ".")  # unlike "!", a factorial, "！" ends a sentence
    | {c: unicodedata.normalize("NFKC", c).replace("⁄", "/") for c in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
    | dict.fromkeys("⁄∕", "/")
    | {"×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "或": " or ", "、": ","}
    | {"⟨": "(", "⟩": ")"}
)  # fmt: skip
_MIXED_NUMBER_GAP = re.compile("(?<=[0-9０-９])(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_SUPERSCRIPTS = re.compile(r"[⁺⁻]?[⁰¹²³⁴-⁹]+")
_SUBSCRIPTS = re.compile("[₀-₉]+")
_WORD_START = r"(?<![a-zA-Z\\])"
# Replaces the double backslash at the end of a row while commands with one backslash are rewritten.
_ROW_END = "\ue000"
_ROW_END_PATTERN = re.compile(
    r"\\\\\*?\s*(?:\[\s*-?[0-9.]+\s*(?:pt|ex|em|mm|cm|in|bp|pc|mu)\s*\])?|\\cr(?![a-z])|\\hline(?![a-z])"
)
# Replaces a line break that may stand between two numbers while spaces are rewritten.
_LINE_BREAK = "\ue001"
_BREAK_BESIDE_NUMBER = re.compile(
    r"(?<=[\d/:$)\]}])[^\S\n\r\v\f\x85\u2028\u2029]*+[\n\r\v\f\x85\u2028\u2029]\s*+(?=[\d/:$\\])"
)
_BREAK_BETWEEN_NUMBERS = re.compile(rf"(?<=[0-9/:}}]) ?{_LINE_BREAK}[ {_LINE_BREAK}]*+(?=[0-9/:]|\\frac)")
_COLUMN_FORMAT = re.compile(r"(?<=\{array\})\s*\{[lcr|\s]*\}")
# The replacement of each pattern, applied in this order.
_REWRITES = {
    # Code marks, bold type and quotation marks around the whole text.
    r"^\s*```[a-z]+ (.*)```\s*$": r" \1 ",
    r"^\s*(`{1,3}|[*_]{1,3}|['\"])(.*)\1\s*$": r" \2 ",
    r"^\s*[“‘「『«„‹](.*)[”’」』»“›]\s*$": r" \1 ",
    # Commands that concern only the look of a formula.
    r"\\displaystyle(?![a-z])": " ",
    r"\\(?:left|right)(?![a-z])\.?|\\!": "",
    r"\^\s*\{?\s*\\(?:top|intercal|(?:mathsf|mathrm|text) ?\{ ?T ?\})(?![a-z])\s*\}?": "^T",
    r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|underline|textcolor ?\{\w+\})\s*\{([^{}]*)\}": r" \1 ",
    # Brackets, spaces and dollar signs.
    r"\\langle(?![a-z])": "(",
    r"\\rangle(?![a-z])": ")",
    r"\+/-": r"\\pm ",
    r"\\[()\[\]]|\$\$|\\[,;: ]|~|\\q?quad(?![a-z])": " ",
    r"^\s*\*\*(.*?)\*\*\s*$|\$([^$]+)\$": r" \1\2 ",
    # Numbers, fractions, signs and units.
    r"(?<=[0-9])\{,\}(?=[0-9]{3}(?![0-9]))": "",
    r"\{,\}": ",",
    r"\\[dtc]frac": r"\\frac",
    r"\{\s*([+-])\s+(?=[0-9])": r"{\1",
    r"\^\s*(?:\\circ|\{\s*\\circ\s*\})": "°",
    r"\\%|\s*\b(?:per ?cent|pct)\b": "%",
    r"\\\$": "$",
    r"\*\*": "^",
    r"^\s*(?:负|零下|(?i:minus|negative) (?=[0-9$]))": "-",
    # Words that have a command.
    rf"{_WORD_START}(pi|log|ln|sin|cos|tan)(?![a-zA-Z])": r"\\\1 ",
    rf"(?:√|{_WORD_START}sqrt)\s*\(([^()]*)\)|√\s*([0-9]+|[a-z])": r"\\sqrt{\1\2}",
    rf"{_WORD_START}oo(?![a-zA-Z])": r"\\infty ",
    r"\\varnothing|^\s*no (?:real )?solutions?\s*$|^\s*(?:无解|空集)\s*$": r"\\emptyset ",
}


@lru_cache(maxsize=4096)
def normalise_notation(text: str) -> str:
    """Return a text in one notation, LaTeX, without quotation marks around it and full stops at its end.

    A line break between two numbers stays, since no number crosses it; any other becomes a space.
    """
    text = _MIXED_NUMBER_GAP.sub(" ", text)
    text = _SUPERSCRIPTS.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}".replace("−", "-"), text)
    text = _SUBSCRIPTS.sub(lambda match: f"_{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = _BREAK_BESIDE_NUMBER.sub(_LINE_BREAK, text.translate(_SIGNS))
    text = nfkc_text(text).rstrip(" .,;")
    if r"\begin{" in text:
        text = _COLUMN_FORMAT.sub(lambda columns: re.sub(r"[|\s]", "", columns[0]), text)
        text = _ROW_END_PATTERN.sub(lambda end: "" if "hline" in end[0] else _ROW_END, text)
        text = text.replace("{smallmatrix}", "{matrix}")
    for pattern, replacement in _REWRITES.items():
        text = re.sub(pattern, replacement, text)
    text = _BREAK_BETWEEN_NUMBERS.sub("\n", " ".join(text.replace(_ROW_END, r" \\ ").split()))
    return re.sub(f"[ {_LINE_BREAK}]+", " ", text).strip().rstrip(" .,;")
