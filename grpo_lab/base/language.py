"""The reader's language, and the translation of texts into it by the catalogues of `grpo_lab.base.catalogues`.

A text is translated when it is shown. A message with values (`fill`) is looked up before the values are put in, so that
a value cannot turn it into another message.

The environment variable `GRPO_LAB_LANG` chooses the language, "en" or "zh_CN". Without it, the folder of a translated
lesson chooses, and else the language of the machine. Stored names, errors and commands stay English, and so does a text
without a translation.
"""

import locale
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.base.catalogues import FULL_STOPS, catalogue, translated
from grpo_lab.base.checks import check_choice


def enter_folder() -> None:
    """In a translated lesson, set the language and change to the folder of the English lessons and recorded runs."""
    working = Path.cwd()
    if (folder := set_language_from_folder(working)) is not None:
        os.chdir(folder.parent / working.relative_to(folder))


def set_language_from_folder(working: Path) -> Path | None:
    """Set the language if the working folder has translated lessons, and return their folder, else None.

    A language that GRPO_LAB_LANG already chooses is not changed.
    """
    folder = next((folder for folder in (working, working.parent) if folder.name == "zh"), None)
    if folder is not None:
        os.environ.setdefault("GRPO_LAB_LANG", "zh_CN")
    return folder


def language() -> str:
    """Return the reader's language, "en" or "zh_CN"."""
    variables = (os.environ.get(name) for name in ("GRPO_LAB_LANG", "LC_ALL", "LC_MESSAGES", "LANG"))
    locale_name = next(filter(None, variables), None) or locale.getlocale()[0] or ""
    if chosen := os.environ.get("GRPO_LAB_LANG"):
        check_choice("GRPO_LAB_LANG", chosen, ("en", "zh_CN"))
    return "zh_CN" if re.match(r"zh[_-](CN|SG|Hans)|Chinese \(Simplified", locale_name) else "en"


def _(text: str) -> str:
    """Translate a text into the reader's language."""
    return in_language(text, language())


def in_language(text: str, target: str) -> str:
    """Translate a text into a language, such as "zh_CN"; "en" leaves it as it is."""
    if target == "en":
        return str(text)
    return _translated_phrase(text, target) if isinstance(text, Phrase) else translated(text, target)


class Phrase(str):
    """A string of English text that also keeps its messages and their values separately, for translation.

    pieces: Sentences without values, and messages with {0} or {name} in the places of their values.
    """

    pieces: tuple["str | Message", ...]

    def __new__(cls, *pieces: "str | Message"):
        phrase = super().__new__(cls, "".join(map(str, pieces)))
        phrase.pieces = tuple(part for piece in pieces for part in getattr(piece, "pieces", (piece,)))
        return phrase

    def __add__(self, end: str) -> "Phrase":
        return Phrase(self, end)

    def __radd__(self, start: str) -> "Phrase":
        return Phrase(start, self)


class Message(NamedTuple):
    """A message with values for its places {0}, {1} or {name}."""

    text: str
    values: tuple
    named_values: dict

    def __str__(self) -> str:
        """The message in English; the items of a value that is a list are separated by commas."""
        values = [", ".join(map(str, value)) if isinstance(value, list) else value for value in self.values]
        return self.text.format(*values, **self.named_values)

    def translated(self, target: str) -> str:
        """Return the translation with its values; a value that is a message itself is also translated."""
        text = catalogue(target).translations.get(self.text, self.text)
        named_values = {name: _translated_value(value, target) for name, value in self.named_values.items()}
        return text.format(*[_translated_value(value, target) for value in self.values], **named_values)


def fill(message: str, /, *values, **named_values) -> Phrase:
    """Put values into the places {0}, {1}, {name} of a message; `_` translates the result."""
    return Phrase(Message(message, values, named_values))


def counted(number: int | float, noun: str) -> Phrase:
    """Return a number with its noun, such as "1 case" or "2.5 points"; the catalogue has both forms of the noun."""
    return fill("{0} " + (noun if number == 1 else f"{noun}s"), f"{number:g}")


def _translated_value(value: Any, target: str) -> Any:
    """Return a value for a translated message; a string is translated only if the catalogue has it as a whole."""
    if isinstance(value, list):
        return "、".join(str(_translated_value(item, target)) for item in value)
    if isinstance(value, Phrase):
        return _translated_phrase(value, target)
    if not isinstance(value, str):
        return value
    # "The result" at the beginning of a sentence is in the catalogue as "the result".
    name = f"the {value[4:]}" if value.startswith("The ") else value
    translations = catalogue(target).translations
    return translations.get(value) or translations.get(name, value)


def _translated_phrase(phrase: Phrase, target: str) -> str:
    """Translate the pieces one by one, and join them without a space after Chinese punctuation."""
    text = ""
    for piece in phrase.pieces:
        if isinstance(piece, Message):
            added = piece.translated(target)
        else:
            start, end = len(piece) - len(piece.lstrip(" ")), len(piece.rstrip(" "))
            added = f"{piece[:start]}{translated(piece.strip(' '), target)}{piece[max(start, end) :]}"
        text = text.rstrip(" ") + added.lstrip(" ") if text.rstrip(" ").endswith(FULL_STOPS) else text + added
    return text
