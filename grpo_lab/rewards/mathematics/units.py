"""Units and counted things behind a number: a table of units that are the same, and words that are no noun.

A unit may be left out, so the table serves two ends: to see that a unit is one, and that two of them contradict each
other. What is counted (5 apples, 6个苹果) is not looked up: any noun will do, as long as it neither hedges nor offers
another answer.
"""

import re

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
_UNITS = {name.replace("-", " "): names[0] for names in _GROUPS for name in names}
_POWERS = {"平方": 2, "square ": 2, "sq ": 2, "立方": 3, "cubic ": 3}
_UNITS |= {word + name: f"{unit}^{power}" for name, unit in _UNITS.items() for word, power in _POWERS.items()}

# Words behind a number that make something else of it: another answer, a doubt, a multiple, a part.
_NO_NOUNS = """
or and to than else not no none maybe perhaps possibly if but plus minus times divided over until through versus
about approximately roughly almost nearly around are was equals equal wrong false incorrect both either neither
remainder hundred thousand million billion trillion dozen zero one two three four five six seven eight nine ten eleven
twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty
ninety per percent squared cubed sqrt log sin cos tan mod half halves third quarter fourth fifth sixth seventh eighth
ninth tenth hundredth thousandth millionth
"""
_NO_CHINESE_NOUN = re.compile(
    r"[零〇一二两三四五六七八九十百千万亿半或和与及到至约非否不另还加减乘除余比点折成多几等于又]|左右|以[上下]|上下|分之"
)
_SHAPE = re.compile(r"[三四五六七八][角边]形")
_NOUN = re.compile(r"(?=.*[aeiouy])[a-z][a-z'-]{2,}")  # xy is a product


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
    return "" if _is_counted(text) else None


def _single(text: str) -> str | None:
    """Symbols as they are written, words in any case and number: "Metres" is m, "M" is not."""
    base, power = re.fullmatch(r"(.*?) ?(?:\^?\{?([23])\}?)?", text).groups()
    lower = base.lower().removesuffix("s") if len(base) > 2 else base
    unit = _UNITS.get(base) or _UNITS.get(lower) or _UNITS.get(lower.removesuffix("e"))
    return f"{unit}^{power}" if unit and power else unit


def _is_counted(text: str) -> bool:
    if re.fullmatch(r"[\u4e00-\u9fff]{1,12}", text):
        return not _NO_CHINESE_NOUN.search(_SHAPE.sub("", text))  # 4元五角 is not 4; 6个三角形 is 6
    words = text.lower().split()
    no_nouns = {word for name in _NO_NOUNS.split() for word in (name, name + "s")}
    return 0 < len(words) <= 4 and all(_NOUN.fullmatch(word) and word not in no_nouns for word in words)
