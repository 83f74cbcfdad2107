"""The unit that the text after a number names: "cm", "平方米", "base 5", or things that are counted (5 apples).

Two names of a unit give the same unit. Things that are counted are in no table: any single English plural is accepted,
and so are Chinese words that do not change the number.
"""

import re
from pathlib import Path

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
