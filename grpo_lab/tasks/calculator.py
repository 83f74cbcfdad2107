"""A calculator inside a thought: where the model writes "17+58=", the environment writes "75"."""

import re

STOP_STRINGS = ("=",)
MAX_TERM_LENGTH = 40  # characters of a term; a model that repeats itself may write thousands
_TERM = re.compile(r"([0-9]+(?:[+*-][0-9]+)+)=$")


def calculate(text: str) -> str:
    """Return the calculator's reply to a text: the value of the term before its last "=", "" if there is none."""
    term = _TERM.search(text.rstrip()[-MAX_TERM_LENGTH:])
    return str(_value(term[1])) if term else ""


def calculator_replies(texts: list[str]) -> list[str]:
    """The calculator's reply to each of some texts."""
    return [calculate(text) for text in texts]


def _value(term: str) -> int:
    """The value of a term of whole numbers with +, - and *, of which * comes first."""
    total = 0
    for sign, product in re.findall(r"([+-]?)([0-9*]+)", term):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total
