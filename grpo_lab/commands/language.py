"""The reader's language: what is shown is looked up in po/LANGUAGE/*.po (gettext's format) as it is shown.

`GRPO_LAB_LANG` chooses, "en" or "zh_CN"; else the folder of a translated lesson does, else the machine's own language.
Stored names, errors and commands stay English, and so does what has no translation yet.
"""

import locale
import os
import re
from functools import cache
from pathlib import Path

from grpo_lab.commands.checks import check_choice
from grpo_lab.commands.display import prose

HERE = Path(__file__).parents[1]
PO = HERE / "po" if (HERE / "po").is_dir() else HERE.parent / "po"  # a wheel has it inside
SLOT = re.compile(r"\{(\w+)\}")  # in a message, the place of a value
SEAMS = re.compile(r"(\n+|(?<!\\); |\s*\|\s*| → | / |\*\* ?|\*\(|\)\*|(?<=[.!?:]) | (?=\*\())")  # between parts
WIDE = {"; ": "；", "*(": "*（", ")*": "）*"}  # punctuation between Chinese


def enter_folder() -> None:
    """In a translated lesson: speak its language, and work where the English one does, beside the recorded runs."""
    here = Path.cwd()
    for folder in (here, here.parent):
        if folder.name == "zh":
            os.environ.setdefault("GRPO_LAB_LANG", "zh_CN")
            os.chdir(folder.parent / here.relative_to(folder))


def language() -> str:
    variables = (os.environ.get(name) for name in ("GRPO_LAB_LANG", "LC_ALL", "LC_MESSAGES", "LANG"))
    name = next(filter(None, variables), None) or locale.getlocale()[0] or ""
    if chosen := os.environ.get("GRPO_LAB_LANG"):
        check_choice("GRPO_LAB_LANG", chosen, ("en", "zh_CN"))
    return "zh_CN" if re.match(r"zh[_-](CN|SG|Hans)|Chinese \(Simplified", name) else "en"


def _(text: str) -> str:
    """The text in the reader's language."""
    return text if (to := language()) == "en" else translated(text, to)


@cache
def translated(text: str, to: str) -> str:
    """The text as a whole if it is known, else part by part; a part that is not known stays as it is."""
    exact, forms = known(to)
    parts = SEAMS.split(text)
    heads = ["".join(parts[: end + 1]) for end in range(0, len(parts), 2)]
    head, said = parts[0], parts[0]
    if there := [head for head in heads if head in exact]:
        head, said = there[-1], exact[there[-1]]  # the longest
    elif fits := [(found[0], found, said) for form, said in forms if (found := form.match(text))]:
        head, found, said = min(fits, key=lambda fit: len(fit[0]))  # values reach no further than they have to
        said = SLOT.sub(lambda slot: _listed(found[f"_{slot[1]}"], to), said)
    if head == text:
        return said
    seam = SEAMS.match(text, len(head))[0]
    rest = text[len(head) + len(seam) :]
    seam = seam if head.count("$") % 2 else WIDE.get(seam, seam)  # but not within a formula
    close = seam == " " and said[-1:] in tuple("。！？：") and rest[:1] != "*"  # of *this*, which begins after a space
    return said + ("" if close else seam) + translated(rest, to)


def _listed(value: str, to: str) -> str:
    """A value, or several with commas between."""
    whole, each = translated(value, to), [translated(one, to) for one in value.split(", ")]
    return whole if whole != value or value == ", ".join(each) else "、".join(each)


def confirmed(path: Path) -> list:
    """The messages of a PO file whose translation a person has confirmed."""
    from babel.messages.pofile import read_po

    messages = read_po(path.read_bytes().splitlines(), ignore_obsolete=True) if path.exists() else ()
    return [message for message in messages if message.id and message.string and not message.fuzzy]


@cache
def known(to: str) -> tuple[dict[str, str], list[tuple[re.Pattern, str]]]:
    """Messages by their English, and forms of those with values; not what a person has yet to confirm."""
    exact = {}
    try:
        for path in sorted((PO / to).glob("*.po")):
            for message in confirmed(path):
                if "block" not in message.auto_comments:
                    exact |= {message.id: message.string, prose(message.id): prose(message.string)}
    except ImportError:  # what is missing is for the doctor to say, in English then
        return {}, []
    slots = {text: SLOT.findall(text) for text in exact}
    valued = [text for text, names in slots.items() if names and len(names) == len(set(names))]
    longest_first = sorted(valued, key=len, reverse=True)  # the most telling first
    return exact, [(_form(text), exact[text]) for text in longest_first]


def _form(text: str) -> re.Pattern:
    """What begins as the message does, with values in it, and ends there or at a seam."""
    words = max(re.split(r"\{\w+\}", text), key=len)  # to look for first: quick, where there are two values in a row
    form = re.sub(r"\\\{(\w+)\\\}", r"(?P<_\1>(?:(?!\*\*)[^|\n])*?)", re.escape(text))
    return re.compile(f"(?=[^\n]*{re.escape(words)}){form}(?={SEAMS.pattern}|\\Z)")
