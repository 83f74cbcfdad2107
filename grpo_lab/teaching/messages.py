"""Translation of the lines that a lesson prints, from po/LANGUAGE/prints.po, and of messages with numbers in them.

A line is split at gaps of two or more spaces into the cells of a table, and each cell is looked up. A line without such
gaps is one cell. A message is a text with {0}, {1}, ... in place of its numbers, so that it is found whatever a run
measures. Text that is not in the file is printed unchanged: the text of a model, code, and names of functions.
"""

import builtins
import io
import re
import unicodedata

from grpo_lab.base.language import PRINTS, SLOT, display_catalogue, language

GAP = re.compile(r"( {2,}|^ +)")  # spaces between the cells of a line, and before the first cell
NUMBER = re.compile(r"(?<![\w.])[+−±-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?%?(?![A-Za-z]*\d)")
WORD = re.compile(r"[A-Za-z]{2,}")


def print_translations(target_language: str) -> dict[str, str]:
    """Return {message of an English cell: its translation}; empty if Babel or the file is missing."""
    return display_catalogue(PRINTS, target_language)


def printed_messages(text: str) -> list[str]:
    """Return the distinct messages of a printed text that contain a word."""
    messages = [message_and_numbers(cell)[0] for line in text.split("\n") for cell in GAP.split(line)]
    return list(dict.fromkeys(message for message in messages if WORD.search(message)))


def translate_printed_text(text: str, target_language: str) -> str:
    """Return a printed text in another language; columns keep their places as far as there is room."""
    return "\n".join(_translate_line(line, target_language) for line in text.split("\n"))


def _translate_line(line: str, target_language: str) -> str:
    translation = ""
    english_column = 0  # column that the English line has reached
    for cell_or_gap in GAP.split(line):
        english_column += len(cell_or_gap)
        if cell_or_gap.strip():
            translation += translate_message(cell_or_gap, print_translations(target_language))
        else:
            fewest_spaces = min(len(cell_or_gap), 1)
            translation += " " * max(fewest_spaces, english_column - display_width(translation))
    return translation


def display_width(text: str) -> int:
    """Return the number of columns of a text in a fixed-width font, in which a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def print_in_readers_language(namespace: dict) -> None:
    """Make `print` in the cells of a lesson translate into the reader's language; in English nothing changes.

    Args:
        namespace: The variables of the notebook. A function `print` in it replaces the built-in one in the cells.
    """
    target_language = language()
    if target_language == "en":
        namespace.pop("print", None)
        return

    def translating_print(*values, sep=None, end=None, file=None, flush=False):
        if file is not None:
            builtins.print(*values, sep=sep, end=end, file=file, flush=flush)
            return
        text = io.StringIO()
        builtins.print(*values, sep=sep, end=end, file=text)
        builtins.print(translate_printed_text(text.getvalue(), target_language), end="", flush=flush)

    namespace["print"] = translating_print


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
