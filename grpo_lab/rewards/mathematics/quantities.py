r"""A text as one exact number with its unit: "-3 1/2", "1.5 \times 10^3", "48平方厘米", "百分之二十五", "$1,234.50".

What is no finished number is none: a sum still to be carried out, two numbers, a number with a doubt ("about 5").
"""

import re
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from grpo_lab.rewards.mathematics.numerals import NUMERALS, chinese_number
from grpo_lab.rewards.mathematics.tidy import without_text
from grpo_lab.rewards.mathematics.units import CURRENCIES, unit_of

LONGEST = 1000  # characters
PLACES = 6
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])|[0-9]{1,3}(?: [0-9]{3})+(?! ?[0-9/,])|[0-9]+(?!,[0-9]))"
_DECIMAL = rf"(?:{_WHOLE}(?:\.[0-9]*)?|\.[0-9]+)"
_TIMES = r"\s*(?:\\times|\\cdot|\*|[xX])\s*"
_POWER = r"10\s*\^\s*(?:\{\s*[+-]?[0-9]{1,3}\s*\}|[+-]?[0-9]{1,3})"
_FORMS = {
    "mixed": re.compile(r"([0-9]+)(?: | ?又 ?| and )([0-9]+) ?/ ?([0-9]+)|([0-9]+) ?(?=\\frac)"),
    "power": re.compile(rf"(?:({_DECIMAL}){_TIMES})?({_POWER}(?:{_TIMES}{_POWER})*)"),
    "scientific": re.compile(rf"({_DECIMAL})[eE]([+-]?[0-9]{{1,3}})(?![0-9])"),
    "fraction": re.compile(r"([0-9]+) ?[/:] ?([0-9]+)|\\frac\s*(\{[^{}]*\}|[0-9])\s*(\{[^{}]*\}|[0-9])"),
    "repeating": re.compile(r"([0-9]+)\.([0-9]*)\\(?:overline|bar|dot)\s*\{([0-9]+)\}"),
    "decimal": re.compile(_DECIMAL),
}
_MULTIPLES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_MULTIPLE = re.compile(rf" ?({'|'.join(_MULTIPLES)})\b")
_PER = {"%": Fraction(1, 100), "‰": Fraction(1, 1000)}
_SPOKEN = re.compile(rf"[0-9.{NUMERALS}又分之点负半一]+")
_IN_BRACKETS = re.compile(r"(.*[^ ]) ?\(([^()0-9=+*/^-]+)\)")  # a unit as in 10(元)
# Behind these 千 belongs to the unit: 5千米 is five kilometres.
_KILO = tuple("米克瓦帕焦伏卡赫")


@dataclass(frozen=True)
class Quantity:
    """`rounded` says that it is written with a decimal point, so that its last digits may have been rounded."""

    value: Fraction
    unit: str = ""
    rounded: bool = False

    def latex(self) -> str:
        top, bottom = self.value.numerator, self.value.denominator
        if self.rounded:
            with localcontext() as context:
                context.prec = LONGEST
                return f"{Decimal(top) / Decimal(bottom):f}"
        return str(top) if bottom == 1 else rf"{'-' * (top < 0)}\frac{{{abs(top)}}}{{{bottom}}}"


def same_quantity(a: Quantity, b: Quantity) -> bool:
    """Equal numbers, and no contradiction between units. Of a decimal, six places count, and a thousandth of it."""
    if a.unit and b.unit and a.unit != b.unit:
        return False
    if a.value == b.value or not (a.rounded or b.rounded):
        return a.value == b.value
    # Six places alone would make all tiny numbers equal, and equal to 0.
    near = abs(a.value - b.value) * 1000 <= max(abs(a.value), abs(b.value))
    return near and round(a.value, PLACES) == round(b.value, PLACES)


@lru_cache(maxsize=4096)
def quantity_in(text: str) -> Quantity | None:
    """The number that a tidy text is, with its unit; None if it is not one number, finished and alone."""
    plain = _unwrapped(without_text(text).strip().rstrip(".,;"))
    if not plain or len(plain) > LONGEST:
        return None
    if re.search("[^半]半$", plain) and len(plain) > 2 and (whole := quantity_in(plain[:-1])):  # 3个半
        return Quantity(whole.value + Fraction(1, 2), whole.unit) if whole.value.denominator == 1 else None
    if (found := _IN_BRACKETS.fullmatch(plain)) and unit_of(found[2]) is not None:
        plain = f"{found[1]} {found[2]}"
    sign, currency, rest = _signed(plain)
    read = _spoken(rest) or _written(rest)
    if read is None:
        return None
    value, rounded, tail = read
    if tail[:1] == " " and tail[1:2] in _PER:
        tail = tail[1:]
    value *= sign * _PER.get(tail[:1], 1)
    unit = unit_of(tail[1:] if tail[:1] in _PER else tail)
    glued = unit == "" and tail[:1].isascii() and tail[:1].isalpha()  # 5abc is a product
    if unit is None or glued or (currency and unit not in ("", currency)):
        return None
    return Quantity(value, currency or unit, rounded)


def _unwrapped(text: str) -> str:
    for left, right in (("(", ")"), ("{", "}"), (r"\{", r"\}")):
        inside = text[len(left) : -len(right)]
        if text.startswith(left) and text.endswith(right) and not set(inside) & set(left + right + ","):
            return inside.strip()
    return text


def _signed(text: str) -> tuple[int, str, str]:
    """The sign, the currency as a unit, and what is left; either may come first."""
    sign, currency = 1, ""
    text = re.sub(r"^(?:minus|negative) (?=[0-9$¥€£.\\])", "-", text, flags=re.IGNORECASE)
    for _ in range(2):
        if (found := re.match(r"[+-] ?", text)) and sign == 1:
            sign, text = -1 if text[0] == "-" else 1, text[found.end() :]
        if not currency and (symbol := next((c for c in CURRENCIES if text.startswith(c)), "")):
            currency, text = unit_of(symbol) or "", text[len(symbol) :].lstrip()
    return sign, currency, text


def _spoken(text: str) -> tuple[Fraction, bool, str] | None:
    """A number in Chinese words at the beginning of a text, and what follows it."""
    run = _SPOKEN.match(text)
    if run is None or not any(c in NUMERALS + "半" for c in run[0]):
        return None
    for end in range(run.end(), 0, -1):
        tail = text[end:]
        kilo = tail.startswith(_KILO) and text[end - 1] == "千" and end > 1
        if not kilo and not tail[:1].isdigit() and (value := chinese_number(text[:end])) is not None:
            return value, "." in text[:end] or "点" in text[:end], tail
    return None


def _written(text: str) -> tuple[Fraction, bool, str] | None:
    for name, pattern in _FORMS.items():
        if (found := pattern.match(text)) and (read := _READERS[name](found, text)):
            value, rounded, tail = read
            if multiple := _MULTIPLE.match(tail):
                value, tail = value * _MULTIPLES[multiple[1]], tail[multiple.end() :]
            return value, rounded, tail
    return None


def _plain(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", ""))


def _mixed(found: re.Match, text: str) -> tuple | None:
    if found[4]:
        part = _FORMS["fraction"].match(text, found.end())
        whole, read = found[4], part and _fraction(part, text)
    else:
        whole, read = found[1], (_over(found[2], found[3]), False, text[found.end() :])
    if not read or read[0] is None or not 0 < read[0] < 1:
        return None
    return int(whole) + read[0], False, read[2]


def _fraction(found: re.Match, text: str) -> tuple | None:
    top, bottom = (found[1], found[2]) if found[1] else (found[3].strip("{} "), found[4].strip("{} "))
    value = _over(top, bottom)
    tail = text[found.end() :]
    return None if value is None or tail[:1] in tuple("./:0123456789^!") else (value, False, tail)


def _over(top: str, bottom: str) -> Fraction | None:
    whole = re.compile(rf"[+-]?{_WHOLE}")
    if not whole.fullmatch(top) or not whole.fullmatch(bottom) or not _plain(bottom):
        return None
    return _plain(top) / _plain(bottom)


def _power(found: re.Match, text: str) -> tuple:
    exponents = re.findall(r"10\s*\^\s*\{?\s*([+-]?[0-9]+)", found[2])
    mantissa = found[1] or "1"
    return _plain(mantissa) * Fraction(10) ** sum(map(int, exponents)), "." in mantissa, text[found.end() :]


def _scientific(found: re.Match, text: str) -> tuple:
    return _plain(found[1]) * Fraction(10) ** int(found[2]), "." in found[1], text[found.end() :]


def _repeating(found: re.Match, text: str) -> tuple:
    whole, first, again = found.groups()
    nines = (10 ** len(again) - 1) * 10 ** len(first)
    return Fraction(whole) + Fraction(int(first + again) - int(first or 0), nines), False, text[found.end() :]


def _decimal(found: re.Match, text: str) -> tuple | None:
    tail = text[found.end() :]
    # 2^10, 5!, 3(4): more than a number stands there.
    return None if tail[:1] in tuple("^!(.,/:") or tail[:1].isdigit() else (_plain(found[0]), "." in found[0], tail)


_READERS = {
    "mixed": _mixed,
    "power": _power,
    "scientific": _scientific,
    "fraction": _fraction,
    "repeating": _repeating,
    "decimal": _decimal,
}
