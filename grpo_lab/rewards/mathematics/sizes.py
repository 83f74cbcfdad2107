"""Towers of powers and factorials of whole numbers: how large they are, without computing them."""

import math
import re

LARGEST = 1000  # digits; an expected number has no more
_TOKEN = re.compile(r"[0-9]+|[{}()^!]")
_TOWER = re.compile(r"-?[0-9{}()^! ]+")


def is_too_large(text: str) -> bool:
    r"""Whether a text is certainly a number of more than a thousand digits: "9^{9^9}" is one, "2^{10}" is none.

    Only powers and factorials of whole numbers are looked at; of anything else nothing is said.
    """
    if not _TOWER.fullmatch(text):
        return False
    tokens = _TOKEN.findall(text)[::-1]
    try:
        size = _power(tokens)
    except (IndexError, ValueError):
        return False  # brackets that do not close, or signs where numbers should be
    return not tokens and size == math.inf


def _power(tokens: list[str]) -> float | int:
    base = _factorial(tokens)
    if not tokens or tokens[-1] != "^":
        return base
    tokens.pop()
    exponent = _power(tokens)
    if base < 2 or exponent == 0:
        return 1 if exponent == 0 else base
    return base**exponent if exponent * math.log10(min(base, 10**LARGEST)) < LARGEST else math.inf


def _factorial(tokens: list[str]) -> float | int:
    token = tokens.pop()
    if token in "{(":
        size = _power(tokens)
        if tokens.pop() not in "})":
            raise ValueError("a bracket that does not close")
    else:
        size = int(token) if len(token) <= LARGEST else math.inf
    while tokens and tokens[-1] == "!":
        tokens.pop()
        size = math.factorial(size) if size < 450 else math.inf  # 450! has 1001 digits
    return size
