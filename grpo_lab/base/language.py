"""The reader's language: what is shown is looked up in po/LANGUAGE/*.po (gettext's format) as it is shown.

A message with values is looked up before they are put in (`fill`): what a value says can make no other message of it.
Two things are put together before anybody looks them up, the captions of a lesson's cells (f-strings of the page) and
the outputs of an executed page, from which its Chinese twin is written. Only for these are messages looked for by their
form, and none of `check`'s sentences is among them: they have values that read like sentences.

`GRPO_LAB_LANG` chooses, "en" or "zh_CN"; else the folder of a translated lesson does, else the machine's own language.
Stored names, errors and commands stay English, and so does what has no translation yet.
"""

import locale
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.base.checks import check_choice
from grpo_lab.base.display import prose

PACKAGE = Path(__file__).parents[1]
PO = PACKAGE / "po" if (PACKAGE / "po").is_dir() else PACKAGE.parent / "po"  # a wheel has it inside
# Kinds of messages (comments in grpo_lab.po) that are always filled, so that no text is searched for their form. The
# faults of a signature come from another process as texts.
ALWAYS_FILLED = re.compile(r"grpo_lab/course/(?!checking/run_case)")
FIGURES = "figures.po"  # labels of figures, for `grpo_lab.teaching.plots.labels` alone
PRINTS = "prints.po"  # what lessons print, for `grpo_lab.teaching.notebook.prints` alone
SLOT = re.compile(r"\{(\w+)\}")  # in a message, the place of a value
SEAMS = re.compile(
    r"(\n+|(?<!\\)(?<!&lt)(?<!&gt)(?<!&amp); |\s*\|\s*| → | / |\*\* ?|\*\(|\)\*|(?<=[.!?:]) | (?=\*\())"
)  # between parts
FULL_STOPS = ("。", "！", "？", "：")
WIDE = {"; ": "；", "*(": "*（", ")*": "）*"}  # punctuation between Chinese


def enter_folder() -> None:
    """In a translated lesson: speak its language, and work where the English one does, beside the recorded runs."""
    working = Path.cwd()
    if (folder := set_language_from_folder(working)) is not None:
        os.chdir(folder.parent / working.relative_to(folder))


def set_language_from_folder(working: Path) -> Path | None:
    """The folder of translated lessons that this one is, or lies in; its language is spoken unless one is chosen."""
    folder = next((folder for folder in (working, working.parent) if folder.name == "zh"), None)
    if folder is not None:
        os.environ.setdefault("GRPO_LAB_LANG", "zh_CN")
    return folder


def language() -> str:
    variables = (os.environ.get(name) for name in ("GRPO_LAB_LANG", "LC_ALL", "LC_MESSAGES", "LANG"))
    locale_name = next(filter(None, variables), None) or locale.getlocale()[0] or ""
    if chosen := os.environ.get("GRPO_LAB_LANG"):
        check_choice("GRPO_LAB_LANG", chosen, ("en", "zh_CN"))
    return "zh_CN" if re.match(r"zh[_-](CN|SG|Hans)|Chinese \(Simplified", locale_name) else "en"


class Phrase(str):
    """A text whose messages are looked up before their values are put in; as a string, the English text.

    pieces: sentences that hold no value, and messages with {0} or {name} in the places of their values.
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
    """A message with values for its places."""

    text: str
    values: tuple
    named_values: dict

    def __str__(self) -> str:
        """The message in English; of a list of values each one, with commas between."""
        values = [", ".join(map(str, value)) if isinstance(value, list) else value for value in self.values]
        return self.text.format(*values, **self.named_values)

    def translated(self, target: str) -> str:
        """The translation with the values in it; a value that is a message itself is in the language, too."""
        text = known_messages(target)[0].get(self.text, self.text)
        named_values = {name: _value(value, target) for name, value in self.named_values.items()}
        return text.format(*[_value(value, target) for value in self.values], **named_values)


def fill(message: str, /, *values, **named_values) -> Phrase:
    """The message with values in the places {0}, {1}, {name}: in English here, in the reader's language by `_`."""
    return Phrase(Message(message, values, named_values))


def counted(number: int | float, noun: str) -> Phrase:
    """A number and its noun, such as "1 case", "2 cases", "2.5 points": messages of kind "word" in grpo_lab.po."""
    return fill("{0} " + (noun if number == 1 else f"{noun}s"), f"{number:g}")


def page_in_language(markdown: str, name: str, target: str, known: dict[str, str]) -> str:
    """Markdown of a page, block by block, from the catalogue of this name and further `known` blocks.

    A block that neither has stays as it is.
    """
    entries = {message.id: message.string for message in confirmed_messages(PO / target / f"{name}.po")} | known
    return "\n\n".join(entries.get(block, block) for block in blocks(markdown))


def _value(value: Any, target: str) -> Any:
    """A value as it stands in a translated message; a text is translated if all of it is known, as what is a name."""
    if isinstance(value, list):
        return "、".join(str(_value(item, target)) for item in value)
    if isinstance(value, Phrase):
        return _phrase(value, target)
    if not isinstance(value, str):
        return value
    # "The result" begins a sentence.
    name = f"the {value[4:]}" if value.startswith("The ") else value
    exact = known_messages(target)[0]
    return exact.get(value) or exact.get(name, value)


def _phrase(phrase: Phrase, target: str) -> str:
    """The pieces one by one, without a space after Chinese punctuation."""
    text = ""
    for piece in phrase.pieces:
        if isinstance(piece, Message):
            added = piece.translated(target)
        else:
            start, end = len(piece) - len(piece.lstrip(" ")), len(piece.rstrip(" "))
            added = f"{piece[:start]}{translated(piece.strip(' '), target)}{piece[max(start, end) :]}"
        text = text.rstrip(" ") + added.lstrip(" ") if text.rstrip(" ").endswith(FULL_STOPS) else text + added
    return text


def _(text: str) -> str:
    """The text in the reader's language."""
    return in_language(text, language())


def in_language(text: str, target: str) -> str:
    """The text in this language, such as "zh_CN"; in "en", as it is."""
    if target == "en":
        return str(text)
    return _phrase(text, target) if isinstance(text, Phrase) else translated(text, target)


@cache
def translated(text: str, target: str) -> str:
    """The text as a whole if it is known, else part by part; a part that is not known stays as it is."""
    exact, patterns = known_messages(target)
    pieces = SEAMS.split(text)
    heads = ["".join(pieces[: end + 1]) for end in range(0, len(pieces), 2)]
    head, translation = pieces[0], pieces[0]
    if known_heads := [head for head in heads if head in exact]:
        head, translation = known_heads[-1], exact[known_heads[-1]]  # the longest
    elif matches := [(match, template) for pattern, template in patterns if (match := pattern.match(text))]:
        match, template = min(matches, key=lambda pair: len(pair[0][0]))  # values reach no further than they have to
        head = match[0]
        translation = SLOT.sub(lambda slot: _listed(match[f"_{slot[1]}"], target), template)
    if head == text:
        return translation
    seam = SEAMS.match(text, len(head))[0]
    remainder = text[len(head) + len(seam) :]
    seam = seam if head.count("$") % 2 else WIDE.get(seam, seam)  # but not within a formula
    # No space after Chinese punctuation, but before *this*, which begins after a space.
    no_space = seam == " " and translation[-1:] in FULL_STOPS and remainder[:1] != "*"
    end = translated(remainder, target)
    if end[:1] == "（" != remainder[:1]:  # in place of a word: no space before it
        seam = seam.rstrip(" ")
    return translation + ("" if no_space else seam) + end


def _listed(value: str, target: str) -> str:
    """A value, or several with commas between."""
    as_a_whole, items = translated(value, target), [translated(item, target) for item in value.split(", ")]
    return as_a_whole if as_a_whole != value or value == ", ".join(items) else "、".join(items)


def blocks(markdown: str) -> list[str]:
    """Split Markdown at blank lines, outside of fences and formulas; joined by a blank line they are the text."""
    parts = [""]
    gaps_and_parts = iter(["", *re.split(r"(\n\s*\n)", markdown)])
    for gap, part in zip(gaps_and_parts, gaps_and_parts, strict=True):
        unfinished = parts[-1].count("```") % 2 or parts[-1].count("$$") % 2
        parts = [*parts[:-1], parts[-1] + gap + part] if unfinished else [*parts, part]
    return parts[1:]


def confirmed_messages(path: Path) -> list:
    """The messages of a PO file whose translation a person has confirmed."""
    from babel.messages.pofile import read_po

    messages = read_po(path.read_bytes().splitlines(), ignore_obsolete=True) if path.exists() else ()
    return [message for message in messages if message.id and message.string and not message.fuzzy]


@cache
def display_catalogue(file: str, target: str) -> dict[str, str]:
    """Confirmed messages of `FIGURES` or `PRINTS` by their English; empty where Babel or the file is missing."""
    try:
        return {message.id: message.string for message in confirmed_messages(PO / target / file)}
    except ImportError:
        return {}


@cache
def known_messages(target: str) -> tuple[dict[str, str], list[tuple[re.Pattern, str]]]:
    """Messages by their English, and forms of those with values; not what a person has yet to confirm."""
    exact, filled = {}, set()
    try:
        for path in sorted(path for path in (PO / target).glob("*.po") if path.name not in (FIGURES, PRINTS)):
            for message in confirmed_messages(path):
                if "block" not in message.auto_comments:
                    exact |= {message.id: message.string, prose(message.id): prose(message.string)}
                if any(map(ALWAYS_FILLED.match, message.auto_comments)):
                    filled |= {message.id, prose(message.id)}
    except ImportError:  # what is missing is for the doctor to say, in English then
        return {}, []
    slots = {text: SLOT.findall(text) for text in exact if text not in filled}
    with_slots = [text for text, names in slots.items() if names and len(names) == len(set(names))]
    longest_first = sorted(with_slots, key=len, reverse=True)  # the most telling first
    return exact, [(_form(text), exact[text]) for text in longest_first]


def _form(text: str) -> re.Pattern:
    """A pattern for a text that begins as the message does, with values in it, and ends there or at a seam."""
    # Looked for first: that is quick where there are two values in a row.
    longest_words = max(re.split(r"\{\w+\}", text), key=len)
    # No bold type within a value, but the `**settings` of a signature.
    value = r"(?:(?!\*\*(?!\w+[,)]))[^|\n])*?"
    pattern = re.sub(r"\\\{(\w+)\\\}", lambda slot: f"(?P<_{slot[1]}>{value})", re.escape(text))
    return re.compile(f"(?=[^\n]*{re.escape(longest_words)}){pattern}(?={SEAMS.pattern}|\\Z)")
