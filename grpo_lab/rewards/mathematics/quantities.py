r"""A text as one exact number with its unit: "-3 1/2", "1.5 \times 10^3", "48平方厘米", "百分之二十五", "$1,234.50".

What is no finished number is none: a sum still to be carried out, two numbers, a number with a doubt ("about 5"). The
unit may be left out, so the table of units serves to see that two of them contradict each other. What is counted (5
apples, 6个苹果) is not looked up: any noun will do that neither hedges nor offers another answer.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

LONGEST = 1000  # characters
PLACES = 6  # a decimal with as many may be a rounded one

_SAME = """
mm 毫米 millimetre millimeter|cm 厘米 centimetre centimeter|dm 分米|m 米 metre meter|km 千米 公里 kilometre kilometer
in inch 英寸|ft foot feet 英尺|mi mile 英里|g 克 gram|kg 千克 公斤 kilogram|t 吨 ton tonne|mL 毫升 millilitre milliliter
L 升 litre liter|s 秒 sec second|min 分钟 minute|h 小时 时 hr hour|天 日 day|周 星期 week|月 个月 month|年 year|岁
° 度 deg degree|rad 弧度 radian|°C 摄氏度|°F 华氏度|km/h kmh kmph|mi/h mph|$ US$ USD dollar 美元|¥ 元 块 yuan RMB 人民币
€ euro EUR 欧元|£ GBP 英镑|cent 分钱|角|ha 公顷|V 伏|A 安|W 瓦|kW 千瓦|N 牛|J 焦耳|Hz 赫兹|K
"""
_GROUPS = [group.split() for group in re.split(r"[|\n]", _SAME.strip())]
_UNITS = {name: names[0] for names in _GROUPS for name in names}
_POWERS = {"平方": 2, "square ": 2, "立方": 3, "cubic ": 3}
_UNITS |= {word + name: f"{unit}^{power}" for name, unit in _UNITS.items() for word, power in _POWERS.items()}
# Words behind a number that make something else of it: another answer, a doubt, a multiple, a part.
_NO_NOUN = re.compile(
    r"(?:or|and|to|than|else|not?|none|maybe|perhaps|possibly|if|but|plus|minus|times|divided|over|about|approximately|"
    r"roughly|almost|nearly|around|are|was|equals?|wrong|false|incorrect|both|n?either|remainder|hundred|thousand|"
    r"[mb]illion|trillion|dozen|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|per|percent|squared|"
    r"cubed|sqrt|log|sin|cos|tan|mod|hal[fv]e?|third|quarter|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)th|"
    r"(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)s?"
)
_NO_CHINESE_NOUN = re.compile(
    r"[零一二两三四五六七八九十百千万亿半或和与及到至约非否不另还加减乘除余比点折成多几等于又]|左右|以[上下]|上下|分之"
)
_NOUN = re.compile(r"(?=.*[aeiouy])[a-z][a-z'-]{2,}")  # xy is a product

_DIGITS, _SIZES = dict(zip("零一二三四五六七八九两", (*range(10), 2), strict=True)), {"十": 10, "百": 100, "千": 1000}
_D = "[一二两三四五六七八九]"
_TENS = f"{_D}?十{_D}?"
_HUNDREDS = f"{_D}百(?:零{_D}|{_TENS})?"  # 一百二 is 120 to who says it: without a 零 it is none
_THOUSANDS = f"{_D}千(?![米克瓦])(?:零(?:{_TENS}|{_D})|{_HUNDREDS})?"  # 五千米 is five kilometres
_BELOW = f"(?:{_THOUSANDS}|{_HUNDREDS}|{_TENS}|{_D})"
_SAID = f"(?:{_BELOW}万(?:零(?:{_HUNDREDS}|{_TENS}|{_D})|{_THOUSANDS})?|{_BELOW}|零)"
_SPOKEN = re.compile(
    rf"(?:(?P<bottom>百|千|{_SAID})分之)?(?:(?P<whole>{_SAID})(?:点(?P<places>[零一二三四五六七八九]+))?"
    r"|(?P<half>一?半)|(?P<digits>[0-9]+(?:\.[0-9]+)?))"
)
_WRITTEN = re.compile(
    r"(?:(?P<whole>[0-9]+)(?: ?又 ?| ))?(?P<top>[0-9]+) ?[/:] ?(?P<bottom>0*[1-9][0-9]*)"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)"
)
_THOUSANDS_APART = re.compile(r"(?<![0-9,.] )(?<![0-9,.])[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?![0-9/,]| [0-9])")
_PREFIX = re.compile(r"([+-]?) ?(US\$|RMB|[$¥€£]|) ?([+-]?) ?")
_FACTORS = {"%": Fraction(1, 100), "‰": Fraction(1, 1000), "万": 10**4, "亿": 10**8,
            "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "dozen": 12}  # fmt: skip
_FACTOR = re.compile(r" ?([%‰万亿]|(?:hundred|thousand|million|billion|dozen)\b)")
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
    text = _THOUSANDS_APART.sub(lambda number: re.sub("[, ]", "", number[0]), text)
    prefix = _PREFIX.match(text)
    before, currency, after = prefix.groups()
    text = text[prefix.end() :]
    read = _spoken(text) or _written(text)
    if read is None or (before and after):
        return None
    value, places, tail = read
    value *= -1 if "-" in before + after else 1
    if factor := _FACTOR.match(tail):
        value, tail = value * _FACTORS[factor[1]], tail[factor.end() :]
        places += 2 * (places > 0 and factor[1] == "%")
    unit = unit_of(re.sub(r"^ ?\(([^()0-9=+*/^-]+)\)$", r" \1", tail))
    is_product = unit == "" and tail[:1].isascii() and tail[:1].isalpha()  # 5abc
    if unit is None or is_product or (currency and unit not in ("", unit_of(currency))):
        return None
    return Quantity(value, unit or (currency and unit_of(currency)), places)


def _spoken(text: str) -> tuple[Fraction, int, str] | None:
    """A number in Chinese words at the beginning of a text: its value, its decimal places, and what follows it."""
    found = _SPOKEN.match(text)
    if found is None or (found["digits"] and not found["bottom"]):
        return None
    places = "".join(str(_DIGITS[digit]) for digit in found["places"] or "")
    value = Fraction(1, 2) if found["half"] else Fraction(found["digits"] or f"{_said(found['whole'])}.{places or 0}")
    bottom = _SIZES.get(found["bottom"]) or _said(found["bottom"] or "一")
    return (value / bottom, len(places), text[found.end() :]) if bottom else None


def _said(words: str) -> int:
    """A whole number in words, as `_SAID` matches them."""
    above, _, below = words.rpartition("万")
    total, digit = _said(above) * 10**4 if above else 0, 0
    for word in below:
        if word in _SIZES:  # 十七 needs nothing before it
            total, digit = total + (digit or 1) * _SIZES[word], 0
        else:
            digit = _DIGITS[word]
    return total + digit


def _written(text: str) -> tuple[Fraction, int, str] | None:
    """The same for a number in digits."""
    if (found := _WRITTEN.match(text)) is None:
        return None
    tail = text[found.end() :]
    if decimal := found["decimal"]:
        return Fraction(decimal), max(0, -Decimal(decimal).as_tuple().exponent), tail
    part, whole = Fraction(int(found["top"]), int(found["bottom"])), int(found["whole"] or 0)
    return (whole + part, 0, tail) if part < 1 or not whole else None  # 3 3/2 is no mixed number


def unit_of(text: str) -> str | None:
    """What the words behind a number come to: the name of a known unit, "" for a thing that is counted, None for
    neither.

    "平方厘米", "square centimetres" and "cm^2" are one unit, "km/h" and "千米/时" another; "apples" is "".
    """
    text = text.strip()
    if not text or len(text) > 60:
        return None if text else ""
    units = [_single(part.strip()) for part in re.sub(r"\s+per\s+|每", "/", text).split("/")]
    if None not in units and len(units) <= 2:
        return "/".join(units)
    if re.fullmatch(r"[\u4e00-\u9fff]{1,12}", text):
        is_counted = not _NO_CHINESE_NOUN.search(re.sub("[三四五六七八][角边]形", "", text))  # 4元五角 is not 4
    else:
        words = text.lower().split()
        is_counted = len(words) <= 4 and all(_NOUN.fullmatch(w) and not _NO_NOUN.fullmatch(w) for w in words)
    return "" if is_counted else None


def _single(text: str) -> str | None:
    """Symbols as they are written, words in any case and number: "Metres" is m, "M" is not."""
    base, power = re.fullmatch(r"(.*?) ?(?:\^?\{?([23])\}?)?", text).groups()
    lower = base.lower().removesuffix("s") if len(base) > 2 else base
    unit = _UNITS.get(base) or _UNITS.get(lower) or _UNITS.get(lower.removesuffix("e"))
    return f"{unit}^{power}" if unit and power else unit
