"""Units and counted things behind a number: which are the same, and which words are none.

A unit may be left out, so the table serves two ends: to see that a unit is one, and that two of them contradict each
other. What is counted (5 apples, 6个苹果) is not looked up: any noun will do, as long as it neither hedges nor offers
another answer.
"""

import re

from grpo_lab.rewards.mathematics.numerals import NUMERALS

_SAME = """
mm 毫米 millimetre millimeter|cm 厘米 公分 centimetre centimeter|dm 分米 decimetre decimeter|m 米 公尺 metre meter
km 千米 公里 kilometre kilometer|in inch 英寸|ft foot feet 英尺|yd yard|mi mile 英里|mg 毫克 milligram|g 克 gram gramme
kg 千克 公斤 kilogram kilo|t 吨 ton tonne|lb 磅|oz ounce|斤|s 秒 秒钟 sec second|min 分钟 minute
h 小时 个小时 时 hr hour|天 日 day|周 星期 个星期 week|月 个月 month|年 year|岁 years-old year-old
ml mL 毫升 millilitre milliliter|L l 升 litre liter|ha 公顷 hectare|亩|° 度 deg degree|rad 弧度 radian
°C 摄氏度|°F 华氏度|km/h kmh kmph kph|mi/h mph|$ US$ USD dollar 美元|¥ 元 块 块钱 元钱 yuan RMB CNY 人民币
€ euro EUR 欧元|£ GBP 英镑|分钱 cent|角|W 瓦 watt|kW 千瓦|V 伏 volt|A 安 ampere|N 牛 newton
J 焦 焦耳 joule|kJ 千焦|Hz 赫兹 hertz|Pa 帕|K kelvin
"""
_GROUPS = [group.split() for line in _SAME.strip().splitlines() for group in line.split("|")]
_UNITS = {name: names[0] for names in _GROUPS for name in names}
CURRENCIES = ("US$", "RMB", "$", "¥", "€", "£", "₹", "₽")

# Words behind a number that make something else of it: another answer, a doubt, a multiple.
_NO_NOUNS = """
or and to than else not no none maybe perhaps possibly if but plus minus times divided over until through versus vs
about approximately roughly almost nearly around so is are was equals equal wrong false incorrect both either
neither remainder hundred thousand million billion trillion dozen zero one two three four five six seven eight nine
ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty
seventy eighty ninety per percent pi squared cubed sqrt log sin cos tan mod
"""
_PART = "half|halves|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|millionth"
_PARTS = [part + plural for part in _PART.split("|") for plural in ("", "s")]
_NOT_NOUNS = frozenset([*_NO_NOUNS.split(), *_PARTS])
_NOT_COUNTED = re.compile(r"[或和与及到至约非否另还加减乘除余比点折成半多几等于]|左右|以上|以下|不是|不对|上下|分之|又")
_SHAPE = re.compile(r"[三四五六七八][角边]形")
_WORD = re.compile(r"(?=.*[aeiouyAEIOUY])[A-Za-z][A-Za-z'-]{2,}")  # xy is a product
_COUNTED = re.compile(r"[\u4e00-\u9fff]{1,12}")
_POWERS = ((r"(?:square|sq\.?) ?|平方", "2"), (r"(?:cubic|cu\.?) ?|立方", "3"))
_LONGEST = 60  # characters


def unit_of(text: str) -> str | None:
    """What the words behind a number come to: the name of a known unit, "" for a thing that is counted, None for
    neither.

    "平方厘米", "square centimetres" and "cm^2" are one unit, "km/h" and "千米/时" another; "apples" is "".
    """
    text = text.strip()
    if not text:
        return ""
    if len(text) > _LONGEST:
        return None
    known = _rate(text)
    return known if known is not None else "" if _counted(text) else None


def _rate(text: str) -> str | None:
    over = re.sub(r"\s+per\s+|每", "/", text)
    parts = [_power(part.strip()) for part in over.split("/")]
    return None if None in parts or len(parts) > 2 else "/".join(parts)


def _power(text: str) -> str | None:
    for words, power in _POWERS:
        if (named := re.match(words, text)) and (unit := _single(text[named.end() :])):
            return f"{unit}^{power}"
    base, raised, power = re.sub(r"(?<=[a-z])([23])$", r"^\1", text).partition("^")  # m2, and ㎡ once it is folded
    unit = _single(base.strip())
    power = power.strip("{}")
    if unit is None or (raised and power not in ("2", "3")):
        return None
    return f"{unit}^{power}" if raised else unit


def _single(text: str) -> str | None:
    """Symbols as they are written, words in any case and number: "Metres" is m, "M" is not."""
    word = "-".join(text.split())
    lower = word.lower() if len(word) > 2 else word
    plural = (lower, lower.removesuffix("s"), lower.removesuffix("es"), lower.replace("years-", "year-"))
    return next((_UNITS[name] for name in (word, *(plural if len(lower) > 2 else ())) if name in _UNITS), None)


def _counted(text: str) -> bool:
    if _COUNTED.fullmatch(text):
        # 4元五角 is not 4; 6个三角形 is 6.
        return not set(_SHAPE.sub("", text)) & set(NUMERALS) and not _NOT_COUNTED.search(text)
    words = text.replace(",", " ").split() if "," not in text else []
    return 0 < len(words) <= 4 and all(_WORD.fullmatch(w) and w.lower() not in _NOT_NOUNS for w in words)
