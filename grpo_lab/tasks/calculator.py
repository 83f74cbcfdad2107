"""A calculator in the chain of thought: after the model writes "17+58=", the environment writes "75"."""

import re

STOP_STRINGS = ("=",)
MAX_TERM_LENGTH = 40  # characters; a model that repeats itself may write thousands
_TERM = re.compile(r"([0-9]+(?:[+*-][0-9]+)+)=$")


def calculate(text: str) -> str:
    """Return the value of the term before the "=" at the end of a text, or "" if there is no such term."""
    term = _TERM.search(text.rstrip()[-MAX_TERM_LENGTH:])
    return str(_evaluate(term[1])) if term else ""


def calculator_replies(texts: list[str]) -> list[str]:
    """Return the calculator's reply to each text."""
    return [calculate(text) for text in texts]


def _evaluate(term: str) -> int:
    """Compute a term of whole numbers with +, - and *, in which * takes precedence."""
    total = 0
    for sign, product in re.findall(r"([+-]?)([0-9*]+)", term):
        value = 1
        for factor in product.split("*"):
            value *= int(factor)
        total += -value if sign == "-" else value
    return total
