r"""A text as one exact number with its unit: "-3 1/2", "1.5 \times 10^3", "48平方厘米", "百分之二十五", "$1,234.50".

What is no finished number is none: a sum still to be carried out, two numbers, a number with a doubt ("about 5").
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from grpo_lab.rewards.mathematics.units import unit_of

_SAID = ("零〇", "一壹", "二贰两", "三叁", "四肆", "五伍", "六陆", "七柒", "八捌", "九玖")
_DIGITS = {character: str(digit) for digit, characters in enumerate(_SAID) for character in characters}
_SIZES = {"亿": 10**8, "万": 10**4, "千": 1000, "仟": 1000, "百": 100, "佰": 100, "十": 10, "拾": 10}
NUMERALS = "".join((*_DIGITS, *_SIZES))

LONGEST = 1000  # characters
PLACES = 6  # a decimal with as many may be a rounded one
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+(?![0-9/])|[0-9]+)"
_NUMBER = re.compile(
    rf"(?:(?P<whole>[0-9]+)(?: ?又 ?| and | ))?(?P<top>{_WHOLE}) ?[/:] ?(?P<bottom>{_WHOLE})"
    rf"|(?P<digits>{_WHOLE})?(?:\.(?P<decimals>[0-9]*))?"
    r"(?:[eE](?P<power>[+-]?[0-9]{1,3})|\\(?:overline|bar|dot) *\{(?P<repeated>[0-9]+)\})?"
)
_SPOKEN = re.compile(rf"[0-9.{NUMERALS}又分之点半]+")
_KILO = tuple("米克瓦帕焦伏卡赫")  # behind these 千 belongs to the unit: 5千米 is five kilometres
_PREFIX = re.compile(r"([+-]?) ?(US\$|RMB|[$¥€£]|) ?([+-]?) ?")
_FACTOR = re.compile(r"(?: ?(%|‰|(?:hundred|thousand|million|billion|trillion|dozen)\b))?")
_FACTORS = {"%": Fraction(1, 100), "‰": Fraction(1, 1000), "hundred": 100, "thousand": 10**3, "million": 10**6,
            "billion": 10**9, "trillion": 10**12, "dozen": 12, None: 1}  # fmt: skip
_IN_PLAIN = (
    (re.compile(r"^\(([^(){},]*)\)$|^\\?\{([^(){},\\]*)\\?\}$"), r"\1\2"),
    (re.compile(r"\\frac *(?:\{ *(-?[0-9]+) *\}|([0-9])) *(?:\{ *([0-9]+) *\}|([0-9]))"), r" \1\2/\3\4"),
    (re.compile(r"^(-?)10 *\^ *(?:\{ *([+-]?[0-9]+) *\}|([0-9]+))"), r"\g<1>1e\2\3"),
    (re.compile(r"(?<=[0-9.]) *(?:\\times|\\cdot|[*xX]) *10 *\^ *(?:\{ *([+-]?[0-9]+) *\}|([+-]?[0-9]+))"), r"e\1\2"),
)


@dataclass(frozen=True)
class Quantity:
    """`places` counts the digits behind the decimal point, of which the last may have been rounded."""

    value: Fraction
    unit: str = ""
    places: int = 0

    def __str__(self) -> str:
        decimal = Decimal(self.value.numerator) / Decimal(self.value.denominator) if self.places else None
        return str(self.value) if decimal is None else f"{decimal:f}"


def same_quantity(a: Quantity, b: Quantity) -> bool:
    """Equal numbers, or one the other rounded to six places or more; and no contradiction between units."""
    if a.unit and b.unit and a.unit != b.unit:
        return False
    return a.value == b.value or _is_rounded(a, b) or _is_rounded(b, a)


def _is_rounded(a: Quantity, b: Quantity) -> bool:
    # Of a tiny number six places are nothing: three figures have to agree as well.
    near = abs(a.value - b.value) * 1000 <= abs(b.value)
    return a.places >= PLACES and near and a.value == round(b.value, a.places)


@lru_cache(maxsize=4096)
def quantity_in(text: str) -> Quantity | None:
    """The number that a tidy text is, with its unit; None if it is not one number, finished and alone."""
    if len(text) > LONGEST:
        return None
    for pattern, plain in _IN_PLAIN:
        text = pattern.sub(plain, text).strip()
    prefix = _PREFIX.match(text)
    before, currency, after = prefix.groups()
    text = text[prefix.end() :]
    read = _spoken(text) or _written(text)
    if read is None or (before and after):
        return None
    value, places, end = read
    factor = _FACTOR.match(text, end)
    value *= _FACTORS[factor[1]] * (-1 if "-" in before + after else 1)
    places += 2 * (places > 0 and factor[1] == "%")
    tail = text[factor.end() :]
    unit = unit_of(re.sub(r"^ ?\(([^()0-9=+*/^-]+)\)$", r" \1", tail))
    is_product = unit == "" and tail[:1].isascii() and tail[:1].isalpha()  # 5abc
    if unit is None or is_product or (currency and unit not in ("", unit_of(currency))):
        return None
    return Quantity(value, unit or (currency and unit_of(currency)), places)


def _spoken(text: str) -> tuple[Fraction, int, int] | None:
    """A number in Chinese words at the beginning of a text: its value, its decimal places, and where it ends."""
    run = _SPOKEN.match(text)
    if run is None or re.fullmatch("[0-9.]*", run[0]):
        return None
    for end in range(run.end(), 0, -1):
        is_kilo = text[end - 1] == "千" and end > 1 and text[end:].startswith(_KILO)
        if not is_kilo and not text[end : end + 1].isdigit() and (value := chinese_number(text[:end])) is not None:
            return value, len(re.split("[.点]", text[:end] + ".")[1]), end
    return None


def _written(text: str) -> tuple[Fraction, int, int] | None:
    """The same for a number in digits."""
    found = _NUMBER.match(text)
    whole, top, bottom, digits, decimals, power, repeated = found.groups()
    if top:
        value = Fraction(int(_bare(top)), int(_bare(bottom)) or 1) + int(whole or 0)
        is_fraction = int(_bare(bottom)) and (not whole or value - int(whole) < 1)  # 3 3/2 is no mixed number
        return (value, 0, found.end()) if is_fraction else None
    if not digits and not decimals:
        return None
    decimals = decimals or ""
    value = Fraction(f"{_bare(digits or '0')}.{decimals or 0}") * Fraction(10) ** int(power or 0)
    if repeated:
        value += Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(decimals))
    return value, 0 if repeated or not decimals else max(1, len(decimals) - int(power or 0)), found.end()


def _bare(digits: str) -> str:
    return digits.replace(",", "").replace(" ", "")


def chinese_number(text: str) -> Fraction | None:
    """The number that a text says in Chinese words, digits among them or not; None where it says none.

    The whole text has to be the number: 三个 is none. 半 is a half, 三又二分之一 three and a half. What is left out in
    speech is not guessed: 一百二 is none.
    """
    if len(text) > 40:
        return None
    if "又" in text:
        whole, _, part = text.partition("又")
        a, b = _whole(whole), chinese_number(part)
        return a + b if a is not None and b is not None and 0 < b < 1 else None
    if "分之" in text:
        bottom, _, top = text.partition("分之")
        below = {"百": Fraction(100), "千": Fraction(1000)}.get(bottom) or _whole(bottom)
        above = _decimal(top)
        return above / below if below and above is not None else None
    return Fraction(1, 2) if text in ("半", "一半") else _decimal(text)


def _decimal(text: str) -> Fraction | None:
    whole, point, digits = text.partition("点")
    value = _whole(whole)
    if not point or value is None:
        return value
    if not digits or any(c not in _DIGITS for c in digits):
        return None
    return value + Fraction("0." + "".join(_DIGITS[c] for c in digits))


def _whole(text: str) -> Fraction | None:
    """A number without a fraction, but for digits before a unit: 3.5万 is 35000."""
    if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", text):
        return Fraction(text)
    if text and all(c in _DIGITS for c in text):
        digits = "".join(_DIGITS[c] for c in text)  # 二〇二六, digit by digit
        # 三四 is not 34: it says "three or four".
        return None if len(digits) == 2 and "0" not in digits else Fraction(digits)
    for word, size in _SIZES.items():  # the largest first
        before, found, after = text.rpartition(word)
        if found:
            return _sized(before, size, after)
    return None


def _sized(before: str, size: int, after: str) -> Fraction | None:
    # 十七 needs nothing before it, and 一百十七 is heard.
    many = Fraction(1) if not before and size == 10 else _whole(before)
    rest = _whole(after.lstrip("零〇")) if after else Fraction(0)
    if many is None or rest is None or rest >= size or (size < 10**4 and many >= 10):
        return None
    # 一百二 is 120 to who says it; without a 零 or the next unit it cannot be told from 102.
    told = not after or size == 10 or after[0] in "零〇" or rest >= size // 10
    return many * size + rest if told else None
