r"""A text as one exact number with its unit: "-3 1/2", "1.5 \times 10^3", "48平方厘米", "3.5万", "$1,234.50".

What is no finished number is none: a sum still to be carried out, two numbers, a number with a doubt ("about 5").
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from grpo_lab.rewards.mathematics.units import unit_of

LONGEST = 1000  # characters
PLACES = 6  # a decimal with as many may be a rounded one
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+(?![0-9/])|[0-9]+)"
_NUMBER = re.compile(
    rf"(?:(?P<whole>[0-9]+)(?: ?又 ?| and | ))?(?P<top>{_WHOLE}) ?[/:] ?(?P<bottom>{_WHOLE})"
    rf"|(?P<digits>{_WHOLE})?(?:\.(?P<decimals>[0-9]*))?"
    r"(?:[eE](?P<power>[+-]?[0-9]{1,3})|\\(?:overline|bar|dot) *\{(?P<repeated>[0-9]+)\})?"
)
_PREFIX = re.compile(r"([+-]?) ?(US\$|RMB|[$¥€£]|) ?([+-]?) ?")
_FACTOR = re.compile(r"(?: ?(%|‰|万|亿|(?:hundred|thousand|million|billion|trillion|dozen)\b))?")
_FACTORS = {"%": Fraction(1, 100), "‰": Fraction(1, 1000), "hundred": 100, "thousand": 10**3, "million": 10**6,
            "billion": 10**9, "trillion": 10**12, "dozen": 12, "万": 10**4, "亿": 10**8, None: 1}  # fmt: skip
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
    read = _written(text)
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


def _written(text: str) -> tuple[Fraction, int, int] | None:
    """The number at the beginning of a text: its value, its decimal places, and where it ends."""
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
