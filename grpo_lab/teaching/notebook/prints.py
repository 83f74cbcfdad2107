"""What a lesson prints, in the reader's language, from po/LANGUAGE/prints.po.

A line is looked up cell by cell: cells of a table stand two spaces apart, any other line is one cell. Numbers are {0},
{1}, ... in a message, so that it is found whatever a run measures. What is not in the file stays as it is: what a model
wrote, code, names of functions.
"""

import builtins
import io
import re
import unicodedata

from grpo_lab.base.language import PRINTS, display_catalogue, language
from grpo_lab.teaching.plots.labels import WORD, label_message, looked_up

GAP = re.compile(r"( {2,}|^ +)")  # between the cells of a line, and before the first one


def catalogue(target: str) -> dict[str, str]:
    """Printed cells by their English, in the language `target`; empty where Babel or the file is missing."""
    return display_catalogue(PRINTS, target)


def cells(text: str) -> list[str]:
    """The messages of a printed text that have a word in them, each once."""
    messages = [label_message(cell)[0] for line in text.split("\n") for cell in GAP.split(line)]
    return list(dict.fromkeys(message for message in messages if WORD.search(message)))


def translated_print(text: str, target: str) -> str:
    """The printed text in the language `target`, its columns where they are in English as far as there is room."""
    return "\n".join(_line(line, target) for line in text.split("\n"))


def _line(line: str, target: str) -> str:
    translation, column = "", 0  # so far, and the column that the English line has reached
    for part in GAP.split(line):
        column += len(part)
        if not part.strip():
            translation += " " * max(min(len(part), 1), column - width(translation))
        else:
            translation += looked_up(part, catalogue(target))
    return translation


def width(text: str) -> int:
    """Columns of a text in a font of fixed width, where a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def print_in_own_language(namespace: dict) -> None:
    """Let `print` of a lesson's cells speak the reader's language; in English nothing changes.

    namespace: the variables of the cells, where a function named `print` goes before Python's own.
    """
    target = language()
    if target == "en":
        namespace.pop("print", None)
        return

    def translating_print(*values, sep=None, end=None, file=None, flush=False):
        if file is not None:
            builtins.print(*values, sep=sep, end=end, file=file, flush=flush)
            return
        text = io.StringIO()
        builtins.print(*values, sep=sep, end=end, file=text)
        builtins.print(translated_print(text.getvalue(), target), end="", flush=flush)

    namespace["print"] = translating_print
