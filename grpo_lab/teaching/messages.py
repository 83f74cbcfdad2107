"""Messages of labels and printed lines: a text with {0}, {1}, ... in place of its numbers, and its translation."""

import re

from grpo_lab.base.language import SLOT

NUMBER = re.compile(r"(?<![\w.])[+−±-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?%?(?![A-Za-z]*\d)")
WORD = re.compile(r"[A-Za-z]{2,}")


def message_and_numbers(text: str) -> tuple[str, list[str]]:
    """Return a text with {0}, {1}, ... in place of its numbers, and the list of these numbers."""
    numbers: list[str] = []

    def placeholder(number: re.Match) -> str:
        numbers.append(number[0])
        return f"{{{len(numbers) - 1}}}"

    return NUMBER.sub(placeholder, text), numbers


def translate_message(text: str, translations: dict[str, str]) -> str:
    """Return the translation of a text, with the text's numbers in it; an unknown text is returned unchanged.

    Args:
        text: The text in English.
        translations: {message in English: its translation}.
    """
    if text in translations:
        return translations[text]
    message, numbers = message_and_numbers(text)
    if message not in translations:
        return text
    return SLOT.sub(lambda slot: numbers[int(slot[1])], translations[message])
