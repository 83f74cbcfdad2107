r"""A text as one exact number with its unit: "-3 1/2", "1.5 \times 10^3", "48平方厘米", "三十", "$1,234.50", "25%".

What is no finished number is none: a sum still to be carried out, two numbers, a number with a doubt ("about 5"). The
unit may be left out, so the table of units serves to see that two of them contradict each other. What is counted (5
apples, 6个苹果) is not looked up: one plural will do, and Chinese words that say nothing of the number.

A number in a running text is read in the same notations (`last_number`), so that the two cannot part.
"""

import re
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from grpo_lab.rewards.mathematics.tidy import given_answer, tidy, was_cut_off
from grpo_lab.rewards.text import LONGEST_ANSWER, after_thinking

# One unit a line: the names that are one and the same.
_GROUPS = [line.split() for line in Path(__file__).with_name("units.txt").read_text(encoding="utf-8").splitlines()]
_UNITS = {name: names[0] for names in _GROUPS for name in names}
_POWERS = (("平方", "", 2), ("square ", "", 2), ("", "^2", 2), ("立方", "", 3), ("cubic ", "", 3), ("", "^3", 3))
_UNITS |= {a + name + b: f"{unit}^{power}" for name, unit in _UNITS.items() for a, b, power in _POWERS}
_COUNTED = re.compile(r" [a-z]{3,}s| ?[\u4e00-\u9fff]{1,12}")
# Words behind a number that make another one of it, or doubt it.
_NOT_COUNTED = re.compile(
    r"^ (?:one|two|three|four|five|sixe|seven|eight|nine|ten|[a-z]+teen|[a-z]+tie|dozen|hundred|thousand|[a-z]+illion|"
    r"hal[fv]e?|third|quarter|[a-z]+th|percent|plu|minu|perhap)s$|左右|以[上下]|上下|分之|"
    r"[零一二两三四五六七八九十百千万亿半或和与至约非否不另还加减乘除余比点折成多几等于又]"
)

_DIGITS = "零一二三四五六七八九"


def _in_words(n: int) -> str:
    """A number below 10000 in Chinese words, as behind others: 117 is 一百一十七, 105 一百零五."""
    thousands, hundreds, tens, units = (n // 10**power % 10 for power in (3, 2, 1, 0))
    text = (_DIGITS[thousands] + "千") * (thousands > 0)
    text += (_DIGITS[hundreds] + "百" if hundreds else "零" * (thousands > 0)) * (n % 1000 > 0)
    text += (_DIGITS[tens] + "十" if tens else "零" * (hundreds > 0)) * (n % 100 > 0)
    return text + _DIGITS[units] * (units > 0)


# 三, 十七, 三十, 一百零五: as people say them, up to 9999.
_SPOKEN = (
    {_in_words(n): n for n in range(1, 10_000)} | {_in_words(n)[1:]: n for n in range(10, 20)} | {"零": 0, "两": 2}
)
_NUMERALS = f"(?:[{_DIGITS}两十百万]|千(?![米克]))+"  # 五千克 is 5 kg
CURRENCY = "$¥€£₩₹₽₺₫฿₴₱"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?) ?(?:(?P<currency>[{CURRENCY}]) ?(?P<inner>[+-]?))? ?(?:"
    r"(?:(?P<whole>[0-9]+)(?: ?又 ?| ))?(?P<top>[+-]?[0-9]+) ?[/:] ?(?P<bottom>[+-]?0*[1-9][0-9]*)"
    r"|(?P<start>[0-9]*\.[0-9]*)(?:\\overline *\{ *|\\dot *\{|\()(?P<repeated>[0-9]{1,20}) *[)}]"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)|"
    rf"(?P<spoken>(?:{_NUMERALS}又)?{_NUMERALS}分之{_NUMERALS}|{_NUMERALS}点[{_DIGITS}]+|{_NUMERALS}))"
    r"(?P<percent> ?[%‰])?(?P<tail>.*)"
)
_THOUSANDS_APART = re.compile(r"(?<![0-9,.] )(?<![0-9,.])[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?![0-9/,]| [0-9])")
# 1'234'567, 1_234_567, 1.234.567,00
_APART_ELSEWHERE = re.compile(
    r"(?<![0-9,.'’_])[0-9]{1,3}(?:(['’_])[0-9]{3}(?:\1[0-9]{3})*|(?:\.[0-9]{3})+,[0-9]+)(?![0-9,'’_])"
)
_IN_PLAIN = (
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
_BOLD = re.compile(r"(?<![0-9a-zA-Z)])(?:\*\*|__)|(?:\*\*|__)(?![0-9a-zA-Z(])|`")
# What stands before a number that is a part of something.
_WITHIN = re.compile(r"\\(?:sqrt|overline|ln|log|sin|cos|tan)(?: ?_\S+)? *[{(]?$|[a-zA-Z})] ?/ ?$")
# In a running text: no index, no exponent, nothing within another number.
_IN_TEXT = re.compile(
    r"(?<![0-9.])(?<![\^_])(?<![\^_][+{-])(?<![\^_]\{[+-])"
    rf"(?P<number>[+-]?(?:[{CURRENCY}] ?[+-]?)?(?:"
    r"[0-9]*\.[0-9]*+(?:\\overline ?\{ ?[0-9]+ ?\}|\([0-9]+\))"
    r"|(?:[0-9]++(?: ?又 ?| ))?+[0-9]++(?: ?/ ?|:)[+-]?0*[1-9][0-9]*+"
    r"|(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?+|\.[0-9]++)"
    r"(?: ?[%‰])?)"
    # What makes another number of it, or no finished one.
    r"(?P<more>\.[0-9]|[eE][+-]?[0-9]| ?[/^:] ?[({+-]*[0-9]| ?\\(?:pi|sqrt)|\.?\\overline"
    r"|(?:k|(?-i:M)| ?[mb]n)\b|(?<=\b0)x[0-9a-f]+\b"
    r"| ?(?:[万亿百]|千(?![米克])|(?:hundred|thousand|dozen|[a-z]{1,5}illion)s?\b))?",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def quantity_in(text: str) -> tuple[Fraction, str] | None:
    """The number that a tidy text is, and its unit or ""; None if it is not one number, finished and alone."""
    if len(text) > LONGEST_ANSWER:
        return None
    if (match := _NUMBER.fullmatch(_plain(text))) is None:
        return None
    value, unit = _value_of(match), unit_of(match["tail"])
    if value is None or unit is None or (match["currency"] and match["tail"]) or (match["sign"] and match["inner"]):
        return None
    sign = -1 if "-" in (match["sign"], match["inner"]) else 1
    share = {"%": 100, "‰": 1000}.get((match["percent"] or "").strip(), 1)
    return value * Fraction(sign, share), _UNITS.get(match["currency"], match["currency"] or unit)


def _plain(text: str) -> str:
    """A tidy text with fractions and powers of ten as they are typed, and without marks between thousands."""
    for pattern, plain in _IN_PLAIN:
        text = pattern.sub(plain, text).strip()
    return _join_thousands(text)


def number_alone(text: str) -> Fraction | None:
    """The number that a text is, in any notation, with nothing beside it: no unit, no currency and no base."""
    match = _NUMBER.fullmatch(_plain(tidy(text))) if len(text) <= LONGEST_ANSWER else None
    is_alone = match is not None and not match["currency"] and not match["tail"]
    number = quantity_in(tidy(text)) if is_alone else None
    return number[0] if number else None


def _join_thousands(text: str) -> str:
    text = _APART_ELSEWHERE.sub(lambda number: re.sub("['’_]|[.](?=.*,)", "", number[0]).replace(",", "."), text)
    return _THOUSANDS_APART.sub(lambda number: re.sub("[, ]", "", number[0]), text)


def _value_of(match: re.Match) -> Fraction | None:
    if decimal := match["decimal"]:
        return Fraction(decimal)
    if repeated := match["repeated"]:  # 0.1(6) is (16 - 1)/90
        digits = match["start"].partition(".")[2]
        period = Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(digits))
        return Fraction(match["start"].rstrip(".") or 0) + period
    if spoken := match["spoken"]:
        return _value_of_spoken(spoken)
    return _mixed(int(match["whole"] or 0), Fraction(int(match["top"]), int(match["bottom"])))


def _mixed(whole: int, part: Fraction) -> Fraction | None:
    return whole + part if 0 <= part < 1 or not whole else None  # 3 3/2 is no mixed number


def _value_of_spoken(text: str) -> Fraction | None:
    """The value of a number in Chinese words, if they are the usual ones: 一百二 and 三四 are none."""
    whole, mark, rest = text.partition("点")
    if mark:
        value = _whole_spoken(whole)
        digits = "".join(str(_DIGITS.index(digit)) for digit in rest)
        return None if value is None else value + Fraction(int(digits), 10 ** len(digits))
    front, mark, top = text.partition("分之")
    if not mark:
        number = _whole_spoken(text)
        return None if number is None else Fraction(number)
    whole, _, bottom = front.rpartition("又")
    numbers = [_whole_spoken(part) if part else 0 for part in (whole, top)]
    divisor = {"百": 100, "千": 1000, "万": 10_000}.get(bottom) or _whole_spoken(bottom)
    return _mixed(numbers[0], Fraction(numbers[1], divisor)) if divisor and None not in numbers else None


def _whole_spoken(text: str) -> int | None:
    """A whole number below 10^8 in Chinese words; None for other words."""
    text = re.sub("两(?=[千百万])", "二", text)
    high, mark, low = text.rpartition("万")
    if not mark:
        return _SPOKEN.get(text)
    rest = _SPOKEN.get(low.removeprefix("零"), 0) if low else 0
    is_right = not low or (0 < rest < 1000 and low.startswith("零")) or (rest >= 1000 and not low.startswith("零"))
    return _SPOKEN[high] * 10_000 + rest if is_right and _SPOKEN.get(high) else None


def unit_of(tail: str) -> str | None:
    """The unit that the words behind a number name; "" for none, and for a thing that is counted; None for others.

    The base of a number is one, too: 123_5 is 123, and not 123_6.
    """
    if base := _BASE.match(tail):
        return f"base {int(base[1] or base[2])}"
    tail = re.sub(r"^ ?\((.*)\)$", r" \1", tail).lower().rstrip()
    text = re.sub(r" ?\^?\{?([23])\}?$", r"^\1", tail.strip())
    if unit := _UNITS.get(text) or _UNITS.get(text.removesuffix("s")):
        return unit
    is_counted = _COUNTED.fullmatch(tail) and not _NOT_COUNTED.search(tail)
    return "" if not tail or is_counted else None


def last_number(text: str) -> str:
    """The number that a text gives as its answer, without its unit: "-3", "1000", "1/2"; empty if there is none.

    It is what the answer block or the box holds, or the whole text, if that is a number; else the last number of the
    text. What is no finished number, such as 2^10, 1/0 or 5 million, is none; and there is none where the text was cut
    off in its thinking, in a box, or in a block after another.
    """
    text = after_thinking(text)
    if was_cut_off(text) and re.search(r"</answer>|\\boxed", text):  # a tag that is opened alone says nothing
        return ""
    if quantity_in(answer := tidy(given_answer(text) or text[: LONGEST_ANSWER + 1])):
        if not re.search("[0-9]", answer):  # 三十
            return answer
        text = answer
    text = _running(text)
    *_, last = [None, *(match for match in _IN_TEXT.finditer(text) if not _is_in_word(match))]
    if last is None or last["more"] or _WITHIN.search(text[: last.start()]):
        return ""
    preceding = text[: last.start()].rstrip()[-1:]
    is_operation = preceding.isdigit() or preceding in tuple(")]}%")
    number = last["number"].lstrip("+-") if is_operation else last["number"]
    return number if quantity_in(number) else number.rpartition(" ")[2]  # 2 3/2 is no mixed number


def _is_in_word(match: re.Match) -> bool:
    """True for the 2 of H2O: with letters on both sides, it is no number."""
    preceding, following = match.string[: match.start()], match.string[match.end() :]
    is_followed = following[:1].isascii() and following[:1].isalpha()
    return is_followed and bool(re.search(r"(?<![\\a-zA-Z])[a-zA-Z]+$", preceding[-20:]))


def _running(text: str) -> str:
    """A running text, tidied: in it a dash may part words, ** is bold type, and a full-width comma parts numbers."""
    text = _BOLD.sub(" ", text.replace("—", " , ").replace("，", ", "))
    text = tidy.__wrapped__(re.sub("(?:负|零下|(?i:\\bminus|\\bnegative) )(?=[0-9$])", "-", text))
    for pattern, plain in _IN_PLAIN[1:]:
        text = pattern.sub(plain, text)
    return _join_thousands(text)
