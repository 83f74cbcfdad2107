"""The reader's language, and the translation of texts and pages into it by the catalogues po/LANGUAGE/*.po.

A text is translated when it is shown. A message with values (`fill`) is looked up before the values are put in, so that
a value cannot turn it into another message.

Two kinds of text are translated with their values already in them: the captions of a lesson's cells, which are
f-strings, and the outputs of an executed lesson, from which the Chinese lesson is written. For these, a `Catalogue` has
a pattern of each message with values. It has none for the sentences of `check`, because their values can be sentences
themselves.

The environment variable `GRPO_LAB_LANG` chooses the language, "en" or "zh_CN". Without it, the folder of a translated
lesson chooses, and else the language of the machine. Stored names, errors and commands stay English, and so does a text
without a translation.
"""

import locale
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.base.checks import check_choice
from grpo_lab.base.display import escape_tags

PACKAGE = Path(__file__).parents[1]
PO = PACKAGE / "po" if (PACKAGE / "po").is_dir() else PACKAGE.parent / "po"  # in a wheel it is inside the package
FIGURES = "figures.po"  # the catalogue of labels in figures, which only `grpo_lab.teaching.plots.style` reads
PRINTS = "prints.po"  # the catalogue of lines that lessons print, which only `grpo_lab.teaching.messages` reads
SLOT = re.compile(r"\{(\w+)\}")  # the place of a value in a message
# Comments in grpo_lab.po of messages whose values are always put in by `fill`, so that no pattern is needed for them.
# The messages of checking/signature.py are an exception: in a grading they come as texts from another process.
ALWAYS_FILLED = re.compile(r"grpo_lab/course/(?!checking/signature)")
# Separators between parts of a text that are translated one by one.
SEPARATORS = re.compile(
    r"(\n+|(?<!\\)(?<!&lt)(?<!&gt)(?<!&amp); |\s*\|\s*| → | / |\*\* ?|\*\(|\)\*|(?<=[.!?:]) | (?=\*\())"
)
FULL_WIDTH = {"; ": "；", "*(": "*（", ")*": "）*"}  # the form of separators between Chinese texts
FULL_STOPS = ("。", "！", "？", "：")


def enter_lesson_folder() -> None:
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
    return translate(text, language())


def translate(text: str, target: str) -> str:
    """Translate a text into a language, such as "zh_CN"; "en" leaves it as it is.

    A text is translated as a whole if the catalogue has it, else part by part; an unknown part stays as it is.
    """
    if target == "en":
        return str(text)
    return _translate_phrase(text, target) if isinstance(text, Phrase) else _translate_text(text, target)


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

    def translate(self, target: str) -> str:
        """Translate the message and put its values in; a value that is a message itself is also translated."""
        text = catalogue(target).translations.get(self.text, self.text)
        named_values = {name: _translate_value(value, target) for name, value in self.named_values.items()}
        return text.format(*[_translate_value(value, target) for value in self.values], **named_values)


def fill(message: str, /, *values, **named_values) -> Phrase:
    """Put values into the places {0}, {1}, {name} of a message; `_` translates the result."""
    return Phrase(Message(message, values, named_values))


def counted(number: int | float, noun: str) -> Phrase:
    """Return a number with its noun, such as "1 case" or "2.5 points"; the catalogue has both forms of the noun."""
    return fill("{0} " + (noun if number == 1 else f"{noun}s"), f"{number:g}")


def _translate_value(value: Any, target: str) -> Any:
    """Translate a value of a message; a string is translated only if the catalogue has it as a whole."""
    if isinstance(value, list):
        return "、".join(str(_translate_value(item, target)) for item in value)
    if isinstance(value, Phrase):
        return _translate_phrase(value, target)
    if not isinstance(value, str):
        return value
    # "The result" at the beginning of a sentence is in the catalogue as "the result".
    name = f"the {value[4:]}" if value.startswith("The ") else value
    translations = catalogue(target).translations
    return translations.get(value) or translations.get(name, value)


def _translate_phrase(phrase: Phrase, target: str) -> str:
    """Translate the pieces one by one, and join them without a space after Chinese punctuation."""
    text = ""
    for piece in phrase.pieces:
        if isinstance(piece, Message):
            added = piece.translate(target)
        else:
            start, end = len(piece) - len(piece.lstrip(" ")), len(piece.rstrip(" "))
            added = f"{piece[:start]}{_translate_text(piece.strip(' '), target)}{piece[max(start, end) :]}"
        text = text.rstrip(" ") + added.lstrip(" ") if text.rstrip(" ").endswith(FULL_STOPS) else text + added
    return text


@cache
def _translate_text(text: str, target: str) -> str:
    """Translate a text that is no phrase: its longest known beginning, and then the remainder."""
    beginning, translation = _translate_beginning(text, target)
    if beginning == text:
        return translation
    separator_match = SEPARATORS.match(text, len(beginning))
    assert separator_match is not None  # a beginning ends before a separator
    separator = separator_match[0]
    remainder = text[separator_match.end() :]
    end = _translate_text(remainder, target)
    is_in_formula = beginning.count("$") % 2 == 1
    if not is_in_formula:
        separator = FULL_WIDTH.get(separator, separator)
    # Chinese punctuation has no space after it. Emphasis such as *this* keeps the space, which Markdown needs.
    if separator == " " and translation[-1:] in FULL_STOPS and remainder[:1] != "*":
        separator = ""
    # A full-width bracket in place of a word has no space before it.
    if end[:1] == "（" and remainder[:1] != "（":
        separator = separator.rstrip(" ")
    return translation + separator + end


def _translate_beginning(text: str, target: str) -> tuple[str, str]:
    """Translate the longest beginning of a text that the catalogue has; return this beginning and its translation.

    A beginning ends before a separator or at the end. If the catalogue has none, a pattern may match one; else it is
    the first part, untranslated.
    """
    known = catalogue(target)
    pieces = SEPARATORS.split(text)  # parts, with the separators between them
    beginnings = ["".join(pieces[: end + 1]) for end in range(0, len(pieces), 2)]
    for beginning in reversed(beginnings):
        if beginning in known.translations:
            return beginning, known.translations[beginning]
    matches = [(match, translation) for pattern, translation in known.patterns if (match := pattern.match(text))]
    if matches:
        match, translation = min(matches, key=lambda pair: len(pair[0][0]))  # the match with the shortest values
        return match[0], SLOT.sub(lambda slot: _translate_list(match[f"_{slot[1]}"], target), translation)
    return pieces[0], pieces[0]


def _translate_list(value: str, target: str) -> str:
    """Translate a value, or each of several values that are separated by commas."""
    as_a_whole, items = _translate_text(value, target), [_translate_text(item, target) for item in value.split(", ")]
    return as_a_whole if as_a_whole != value or value == ", ".join(items) else "、".join(items)


class Catalogue(NamedTuple):
    """The confirmed translations into one language, except for those in `FIGURES` and `PRINTS`.

    translations: The translation of each message, by its English.
    patterns: A pattern of each message with values, which has a group such as `_0` for the value at the place {0}, and
        the translation with the same places. Those of longer messages, which are more specific, come first.
    """

    translations: dict[str, str]
    patterns: list[tuple[re.Pattern, str]]


@cache
def catalogue(target: str) -> Catalogue:
    """Return the catalogue of a language, such as "zh_CN"; it is empty without Babel, which `doctor` reports."""
    translations: dict[str, str] = {}
    filled: set[str] = set()
    try:
        for path in sorted(path for path in (PO / target).glob("*.po") if path.name not in (FIGURES, PRINTS)):
            for message in confirmed_messages(path):
                if "block" not in message.auto_comments:
                    translations |= {message.id: message.string, escape_tags(message.id): escape_tags(message.string)}
                if any(map(ALWAYS_FILLED.match, message.auto_comments)):
                    filled |= {message.id, escape_tags(message.id)}
    except ImportError:
        return Catalogue({}, [])
    slots = {text: SLOT.findall(text) for text in translations if text not in filled}
    with_slots = [text for text, names in slots.items() if names and len(names) == len(set(names))]
    longest_first = sorted(with_slots, key=len, reverse=True)
    return Catalogue(translations, [(_message_pattern(text), translations[text]) for text in longest_first])


def _message_pattern(text: str) -> re.Pattern:
    """Return a pattern for a message with values in it at the beginning of a text, up to a separator or the end."""
    # The pattern first looks for these words, which makes it fast for two values in a row.
    longest_words = max(re.split(r"\{\w+\}", text), key=len)
    # A value has no bold type in it, except for the `**settings` of a signature.
    value = r"(?:(?!\*\*(?!\w+[,)]))[^|\n])*?"
    pattern = re.sub(r"\\\{(\w+)\\\}", lambda slot: f"(?P<_{slot[1]}>{value})", re.escape(text))
    return re.compile(f"(?=[^\n]*{re.escape(longest_words)}){pattern}(?={SEPARATORS.pattern}|\\Z)")


@cache
def display_catalogue(file: str, target: str) -> dict[str, str]:
    """Return the confirmed translations in `FIGURES` or `PRINTS` by their English; {} without Babel or the file."""
    try:
        return {message.id: message.string for message in confirmed_messages(PO / target / file)}
    except ImportError:
        return {}


def confirmed_messages(path: Path) -> list:
    """Return the messages of a PO file whose translation a person has confirmed, which are not marked as fuzzy."""
    from babel.messages.pofile import read_po

    messages = read_po(path.read_bytes().splitlines(), ignore_obsolete=True) if path.exists() else ()
    return [message for message in messages if message.id and message.string and not message.fuzzy]


def translate_page(markdown: str, name: str, target: str, known: dict[str, str]) -> str:
    """Translate the Markdown of a page block by block; a block without a translation stays as it is.

    Args:
        markdown: The page.
        name: The name of the catalogue, without ".po".
        target: The language, such as "zh_CN".
        known: Translations of further blocks, by their English.
    """
    entries = {message.id: message.string for message in confirmed_messages(PO / target / f"{name}.po")} | known
    return "\n\n".join(entries.get(block, block) for block in blocks(markdown))


def blocks(markdown: str) -> list[str]:
    """Split Markdown into blocks at blank lines that are outside of code fences and formulas."""
    parts = [""]
    gaps_and_parts = iter(["", *re.split(r"(\n\s*\n)", markdown)])
    for gap, part in zip(gaps_and_parts, gaps_and_parts, strict=True):
        unfinished = parts[-1].count("```") % 2 or parts[-1].count("$$") % 2
        parts = [*parts[:-1], parts[-1] + gap + part] if unfinished else [*parts, part]
    return parts[1:]
