r"""Reading a text as an exact number with its unit: "-3 1/2", "1.5 \times 10^3", "48平方厘米", "三十", "$1,234.50".

A sum that is not carried out, two numbers, and a number with a doubt ("about 5") are not read as a number.

The text is first written in one notation, LaTeX (`normalise_notation`): "７½" becomes "7 1/2", and "$7\dfrac{1}{2}$."
"7\frac{1}{2}". Then fractions, powers of ten and thousands become plain (`NUMBER_REWRITES`), as in "7 1/2" and "1.5e3",
and one grammar, `ARABIC_NUMBER`, matches the number.

Two names of a unit give the same unit. Things that are counted (5 apples) are in no table: any single English plural is
accepted, and so are Chinese words that do not change the number.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from grpo_lab.rewards.text import MAX_ANSWER_LENGTH, nfkc_text

_CHINESE_DIGITS = "零一二三四五六七八九"
# 千 before 米 or 克 belongs to the unit: 五千克 is 5 kg.
_CHINESE_NUMERALS = f"(?:[{_CHINESE_DIGITS}两十百万]|千(?![米克]))+"
# A regular expression for a text that may be a number: a fraction or mixed number, a decimal, or a whole number.
CHINESE_NUMBER = (
    f"(?:{_CHINESE_NUMERALS}又)?{_CHINESE_NUMERALS}分之{_CHINESE_NUMERALS}"
    f"|{_CHINESE_NUMERALS}点[{_CHINESE_DIGITS}]+|{_CHINESE_NUMERALS}"
)

# The grammar of a number, after the `NUMBER_REWRITES`. `parse_quantity` reads with it a text that is a number, and
# `last_number` (answers.py) finds a number in a running text.
CURRENCY = "(?P<currency>[$¥€£₩₹₽₺₫฿₴₱]) ?(?P<inner_sign>[+-]?)"
_DIGITS_WITH_COMMAS = "(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)"
# 1/2, 1/-2, 1:2, and with a whole number 3 1/2 and 3又1/2.
_FRACTION = (
    rf"(?:(?P<whole>[0-9]++)(?: ?又 ?| )(?P<mixed_numerator>[0-9]++)|(?P<numerator>[+-]?{_DIGITS_WITH_COMMAS}))"
    " ?[/:] ?(?P<denominator>[+-]?0*[1-9][0-9]*)"
)
# Digits that repeat without end: 0.1(6), 0.1\overline{6}.
_REPEATING_DECIMAL = r"(?P<start>[0-9]*\.[0-9]*)(?:\\overline *\{ *|\\dot *\{|\()(?P<repeated>[0-9]{1,20}) *[)}]"
# 12, 1,234.5, .5, 1.5e3, 1.e3.
_EXPONENT = "[eE][+-]?[0-9]{1,3}(?![0-9])"
_DECIMAL = rf"(?P<decimal>(?:{_DIGITS_WITH_COMMAS}(?:\.[0-9]++|\.(?={_EXPONENT}))?|\.[0-9]++)(?:{_EXPONENT})?)"
ARABIC_NUMBER = f"{_FRACTION}|{_REPEATING_DECIMAL}|{_DECIMAL}"
PERCENT = "(?P<percent> ?[%‰])"
_NUMBER_AND_TAIL = re.compile(
    rf"(?P<sign>[+-]?) ?(?:{CURRENCY})? ?(?:(?:{ARABIC_NUMBER})\.?|(?P<chinese>{CHINESE_NUMBER})){PERCENT}?(?P<tail>.*)"
)


class Quantity(NamedTuple):
    """An exact number with its unit."""

    value: Fraction
    unit: str  # first name of the unit in units.txt, a currency sign, or "base 5"; "" without a unit
    is_bare: bool  # whether the text has nothing beside the number, not even "apples", which are no unit


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity | None:
    """Return the number and the unit that a text states; None if the text is not exactly one number.

    text: A text in the notation of `normalise_notation`.
    """
    if len(text) > MAX_ANSWER_LENGTH:
        return None
    if (match := _NUMBER_AND_TAIL.fullmatch(rewrite(text, NUMBER_REWRITES))) is None:
        return None
    currency, tail = match["currency"], match["tail"]
    value = _absolute_value(match)
    unit = _UNITS.get(currency, currency) if currency else parse_unit(tail)
    has_two_units = currency and tail
    has_two_signs = match["sign"] and match["inner_sign"]
    if value is None or unit is None or has_two_units or has_two_signs:
        return None
    sign = -1 if "-" in (match["sign"], match["inner_sign"]) else 1
    divisor = {"%": 100, "‰": 1000}.get((match["percent"] or "").strip(), 1)
    return Quantity(value * Fraction(sign, divisor), unit, is_bare=not currency and not tail)


def parse_number(text: str) -> Fraction | None:
    """Return the number that a text states in any notation; 5% is 1/20.

    The result is None if the text has a unit, a currency, a base or other text.
    """
    if len(text) > MAX_ANSWER_LENGTH:
        return None
    quantity = parse_quantity(normalise_notation(text))
    return quantity.value if quantity and quantity.is_bare else None


def _absolute_value(match: re.Match) -> Fraction | None:
    """Return the value of a match of _NUMBER_AND_TAIL, without its sign and per cent.

    The result is None for an improper mixed number such as 3 3/2, and for unusual Chinese words.
    """
    if decimal := match["decimal"]:
        return Fraction(decimal.replace(",", ""))
    if repeated := match["repeated"]:  # 0.1(6) is (16 - 1)/90
        digits = match["start"].partition(".")[2]  # decimals before the repeating digits
        period = Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(digits))
        return Fraction(match["start"].rstrip(".") or 0) + period
    if chinese := match["chinese"]:
        return parse_chinese_number(chinese)
    numerator = match["mixed_numerator"] or match["numerator"].replace(",", "")
    whole, fraction = int(match["whole"] or 0), Fraction(int(numerator), int(match["denominator"]))
    is_improper = whole > 0 and not 0 <= fraction < 1
    return None if is_improper else whole + fraction


# Each line of units.txt holds the names of one unit. Its first name stands for the unit.
_UNIT_LINES = [line.split() for line in Path(__file__).with_name("units.txt").read_text(encoding="utf-8").splitlines()]
_UNITS = {name: names[0] for names in _UNIT_LINES for name in names}
# A name of three letters or more is a word, which may have capital letters and a plural s. A shorter one is a symbol:
# the m of metre is neither M nor ms.
_UNIT_WORD = re.compile("[A-Za-z]{3,}")
_PLURAL_OF_WORD = re.compile("(?<=[a-z]{3})s$")
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
    tail = re.sub(r"^ ?\((.*)\)$", r" \1", tail).rstrip()
    text = re.sub(r" ?\^?\{?([23])\}?$", r"^\1", tail.strip())
    text = _UNIT_WORD.sub(lambda word: word[0].lower(), text)
    if unit := _UNITS.get(text) or _UNITS.get(_PLURAL_OF_WORD.sub("", text)):
        return unit
    tail = tail.lower()
    is_counted = _COUNTED_THING.fullmatch(tail) and not _NOT_COUNTED.search(tail)
    return "" if not tail or is_counted else None


def parse_chinese_number(text: str) -> Fraction | None:
    """Return the value of a number in Chinese words; None for unusual words such as 一百二 and 三四.

    text: A text that the pattern `CHINESE_NUMBER` matches.
    """
    whole, point, decimals = text.partition("点")
    if point:
        value = _parse_whole_number(whole)
        digits = "".join(str(_CHINESE_DIGITS.index(digit)) for digit in decimals)
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
    text = (_CHINESE_DIGITS[thousands] + "千") * (thousands > 0)
    text += (_CHINESE_DIGITS[hundreds] + "百" if hundreds else "零" * (thousands > 0)) * (n % 1000 > 0)
    text += (_CHINESE_DIGITS[tens] + "十" if tens else "零" * (hundreds > 0)) * (n % 100 > 0)
    return text + _CHINESE_DIGITS[units] * (units > 0)


class Rewrite:
    """A replacement of every match of a pattern in a text.

    Args:
        example: A text that the rewrite changes.
        result: The example afterwards; a test compares it.
        pattern: A regular expression.
        replacement: The text that replaces a match, or a function that returns it, as in `re.sub`.
    """

    def __init__(self, example: str, result: str, pattern: str, replacement: str | Callable[[re.Match], str]):
        self.example, self.result = example, result
        self.pattern, self.replacement = re.compile(pattern), replacement


def _in_ordinary_digits(digits: re.Match) -> str:
    return unicodedata.normalize("NFKC", digits[0])


def rewrite(text: str, rewrites: Iterable[Rewrite]) -> str:
    """Apply rewrites to a text, one after the other."""
    for step in rewrites:
        text = step.pattern.sub(step.replacement, text)
    return text.strip()


# Rewrites of characters that NFKC would replace by digits without a sign of their place.
CHARACTER_REWRITES = (
    Rewrite("7½", "7 ½", "(?<=[0-9０-９])(?=[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])", " "),
    Rewrite("10⁻²", "10^{-2}", "[⁺⁻]?[⁰¹²³⁴-⁹]+", lambda match: f"^{{{_in_ordinary_digits(match)}}}".replace("−", "-")),
    Rewrite("x₁", "x_{1}", "[₀-₉]+", lambda match: f"_{{{_in_ordinary_digits(match)}}}"),
)  # fmt: skip
_WORD_START = r"(?<![a-zA-Z\\])"
# Rewrites into one notation, LaTeX, in the order in which they are applied.
NOTATION_REWRITES = (
    # Code marks, bold type and quotation marks around the whole text.
    Rewrite("```text 4 ```", " 4  ", r"^\s*```[a-z]+ (.*)```\s*$", r" \1 "),
    Rewrite("``4``", " 4 ", r"^\s*(`{1,3}|[*_]{1,3}|['\"])(.*)\1\s*$", r" \2 "),
    Rewrite("“4”", " 4 ", r"^\s*[“‘「『«„‹](.*)[”’」』»“›]\s*$", r" \1 "),
    # Commands that concern only the look of a formula.
    Rewrite(r"\displaystyle4", " 4", r"\\displaystyle(?![a-z])", " "),
    Rewrite(r"\left(4\right)", "(4)", r"\\(?:left|right)(?![a-z])\.?|\\!", ""),
    Rewrite(
        r"A^{\top}", "A^T",
        r"\^\s*\{?\s*\\(?:top|intercal|(?:mathsf|mathrm|text) ?\{ ?T ?\})(?![a-z])\s*\}?", "^T",
    ),
    Rewrite(
        r"4\text{cm}", "4 cm ",
        r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|underline|textcolor ?\{\w+\})\s*\{([^{}]*)\}", r" \1 ",
    ),
    # Brackets, spaces and dollar signs.
    Rewrite(r"\langle 4", "( 4", r"\\langle(?![a-z])", "("),
    Rewrite(r"4 \rangle", "4 )", r"\\rangle(?![a-z])", ")"),
    Rewrite("4 +/- 1", r"4 \pm  1", r"\+/-", r"\\pm "),
    Rewrite(r"\(4\,000\)", " 4 000 ", r"\\[()\[\]]|\$\$|\\[,;: ]|~|\\q?quad(?![a-z])", " "),
    Rewrite("$4$", " 4 ", r"^\s*\*\*(.*?)\*\*\s*$|\$([^$]+)\$", r" \1\2 "),
    # Numbers, fractions, signs and units.
    Rewrite("1{,}234", "1234", r"(?<=[0-9])\{,\}(?=[0-9]{3}(?![0-9]))", ""),
    Rewrite("1{,}2", "1,2", r"\{,\}", ","),
    Rewrite(r"\dfrac12", r"\frac12", r"\\[dtc]frac", r"\\frac"),
    Rewrite(r"\frac{- 1}{2}", r"\frac{-1}{2}", r"\{\s*([+-])\s+(?=[0-9])", r"{\1"),
    Rewrite(r"90^\circ", "90°", r"\^\s*(?:\\circ|\{\s*\\circ\s*\})", "°"),
    Rewrite("4 per cent", "4%", r"\\%|\s*\b(?:per ?cent|pct)\b", "%"),
    Rewrite(r"\$4", "$4", r"\\\$", "$"),
    Rewrite("2**3", "2^3", r"\*\*", "^"),
    Rewrite("minus 4", "-4", r"^\s*(?:负|零下|(?i:minus|negative) (?=[0-9$]))", "-"),
    # Words that have a command.
    Rewrite("2pi", r"2\pi ", rf"{_WORD_START}(pi|log|ln|sin|cos|tan)(?![a-zA-Z])", r"\\\1 "),
    Rewrite(
        "sqrt(2)", r"\sqrt{2}", rf"(?:√|{_WORD_START}sqrt)\s*\(([^()]*)\)|√\s*([0-9]+|[a-z])", r"\\sqrt{\1\2}"
    ),
    Rewrite("oo", r"\infty ", rf"{_WORD_START}oo(?![a-zA-Z])", r"\\infty "),
    Rewrite(
        "no solution", r"\emptyset ",
        r"\\varnothing|^\s*no (?:real )?solutions?\s*$|^\s*(?:无解|空集)\s*$", r"\\emptyset ",
    ),
)  # fmt: skip
# Rewrites of LaTeX into plain numbers, which `ARABIC_NUMBER` matches, in the order in which they are applied.
NUMBER_REWRITES = (
    Rewrite("-(4)", "-4", r"^([+-]?) ?(?:\(([^(){},]*)\)|\{([^(){},]*)\})$", r"\1\2\3"),
    Rewrite("(101)_2", "101_2", r"^\(([0-9]+)\)(?=_)", r"\1"),
    Rewrite(r"7\frac12", r"7 \frac12", r"(?<=[0-9])(?= *\\frac)", " "),
    Rewrite(
        r"\frac{1}{2}", "1/2",
        r"\\frac *(?:\{ *([+-]?[0-9]+) *\}|([0-9])) *(?:\{ *([+-]?[0-9]+) *\}|([0-9]))", r"\1\2/\3\4",
    ),
    Rewrite(
        r"1.5 \times 10^{3}", "1.5e3",
        r"(?<=[0-9.]) *(?:\\times|\\cdot|[*xX]) *10 *\^ *(?:\{ *([+-]?[0-9]+) *\}|([+-]?[0-9]+))", r"e\1\2",
    ),
    Rewrite(
        "10^3", "1e3",
        r"(?<![0-9.a-zA-Z^_])(?<![\^_]\{)10 *\^ *(?:\{ *([+-]?[0-9]{1,3}) *\}|([+-]?[0-9]{1,3}))(?![0-9.^!])",
        r"1e\1\2",
    ),
    # Separated thousands.
    Rewrite(
        "1'234'567", "1234567",
        r"(?<![0-9,.'’_])[0-9]{1,3}(['’_])[0-9]{3}(?:\1[0-9]{3})*(?![0-9,'’_])",
        lambda number: re.sub("['’_]", "", number[0]),
    ),
    Rewrite(
        "1.234.567,00", "1234567.00",
        r"(?<![0-9,.'’_])[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+(?![0-9,'’_])",
        lambda number: number[0].replace(".", "").replace(",", "."),
    ),
    Rewrite(
        "1,234,567 or 1 234 567", "1234567 or 1234567",
        r"(?<![0-9,.] )(?<![0-9,.])[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?![0-9/,]| [0-9])",
        lambda number: re.sub("[, ]", "", number[0]),
    ),
)  # fmt: skip

# Characters that have the same meaning as an ASCII character or a LaTeX command.
_SIGNS = str.maketrans(
    dict.fromkeys("−–—‐‑", "-") | dict.fromkeys("！。", ".")  # unlike "!", a factorial, "！" ends a sentence
    | {c: unicodedata.normalize("NFKC", c).replace("⁄", "/") for c in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
    | dict.fromkeys("⁄∕", "/")
    | {"×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "或": " or ", "、": ","}
    | {"⟨": "(", "⟩": ")"}
)  # fmt: skip
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
_PLAIN_NUMBER = re.compile("[+-]?[0-9]+(?:[./][0-9]+)?")


@lru_cache(maxsize=4096)
def normalise_notation(text: str) -> str:
    """Return a text in one notation, LaTeX, without quotation marks around it and full stops at its end.

    A line break between two numbers stays, since no number crosses it; any other becomes a space.
    """
    if _PLAIN_NUMBER.fullmatch(text):  # true for most answers, and quick
        return text
    text = rewrite(text, CHARACTER_REWRITES).translate(_SIGNS)
    text = _BREAK_BESIDE_NUMBER.sub(_LINE_BREAK, text)
    text = nfkc_text(text).rstrip(" .,;")
    if r"\begin{" in text:
        text = _COLUMN_FORMAT.sub(lambda columns: re.sub(r"[|\s]", "", columns[0]), text)
        text = _ROW_END_PATTERN.sub(lambda end: "" if "hline" in end[0] else _ROW_END, text)
        text = text.replace("{smallmatrix}", "{matrix}")
    text = rewrite(text, NOTATION_REWRITES)
    text = _BREAK_BETWEEN_NUMBERS.sub("\n", " ".join(text.replace(_ROW_END, r" \\ ").split()))
    return re.sub(f"[ {_LINE_BREAK}]+", " ", text).strip().rstrip(" .,;")
