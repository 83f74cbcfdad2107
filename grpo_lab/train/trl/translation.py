"""The result of reading a file for TRL: options of the command, and a note on each name in the file."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from grpo_lab.base.checks import InputError
from grpo_lab.base.commands import as_option_text
from grpo_lab.train.trl.table import VERSION


class NoteKind(enum.Enum):
    """The kind of a note on a name in a file for TRL; its value is the text in the table."""

    SAME_MEANING = "taken"
    OTHER_MEANING = "means something else here"
    NO_EFFECT = "has no effect here"
    ANOTHER_VERSION = "of another version"
    UNSUPPORTED = "not here"
    UNKNOWN = "unknown"


REFUSED_KINDS = (NoteKind.UNSUPPORTED, NoteKind.UNKNOWN)
HEADING_WIDTH = 26  # characters of the first column of the table
PARTS_WIDTH = 86  # characters of its second column, without the comma at the end of a line


@dataclass
class Translation:
    """A translated TRL configuration, with a note on each name in the file.

    options: Options of the command, by name.
    notes_by_kind: For each kind of note, the names in the file and a text on each.
    trl_defaults: Options that have TRL's defaults because the file does not contain them.
    """

    options: dict[str, Any] = field(default_factory=dict)
    notes_by_kind: dict[NoteKind, dict[str, str]] = field(default_factory=lambda: {kind: {} for kind in NoteKind})
    trl_defaults: dict[str, Any] = field(default_factory=dict)

    def note(self, kind: NoteKind, name: str, text: str) -> None:
        """Note what becomes of a name; an earlier note on it is replaced."""
        for notes in self.notes_by_kind.values():
            notes.pop(name, None)
        self.notes_by_kind[kind][name] = text

    def set_option(self, name: str, value: Any, text: str | None = None) -> None:
        """Set an option and note it; a text says what the name means here if that differs from TRL's meaning."""
        self.options[name] = value
        self.note(
            NoteKind.SAME_MEANING if text is None else NoteKind.OTHER_MEANING, name, text or as_option_text(value)
        )

    def set_trl_default(self, name: str, value: Any) -> None:
        """Set an option to TRL's default, which the file does not contain."""
        self.options[name] = self.trl_defaults[name] = value

    @property
    def noted_names(self) -> set[str]:
        return {name for notes in self.notes_by_kind.values() for name in notes}

    @property
    def refused_names(self) -> list[str]:
        """The names in the file that a run here cannot follow."""
        return [name for kind in REFUSED_KINDS for name in self.notes_by_kind[kind]]

    def table(self, file: str) -> str:
        """Return a table of all names in the file, grouped by the kind of their notes."""
        lines = [f"{file}, read as TRL {VERSION} reads it:"]
        for kind, notes in self.notes_by_kind.items():
            if kind is NoteKind.SAME_MEANING:
                lines += _wrapped(kind.value, [f"{name} {text}" for name, text in notes.items()])
            elif kind is NoteKind.NO_EFFECT:
                for reason in dict.fromkeys(notes.values()):
                    lines += _wrapped(kind.value, [name for name in notes if notes[name] == reason], f": {reason}")
            else:
                lines += [line for name, text in notes.items() for line in _wrapped(kind.value, [f"{name}: {text}"])]
        if self.trl_defaults:
            values = [f"{name} {as_option_text(value)}" for name, value in self.trl_defaults.items()]
            lines += _wrapped("not in it: TRL's defaults", values)
        return "\n".join(lines)


def check_translation(translation: Translation, file: str) -> None:
    """Raise one InputError for all names in the file that a run here cannot follow."""
    if translation.refused_names:
        names = ", ".join(translation.refused_names)
        expected = "expected a file without them; the table above says why. They may be removed, or typed as options"
        raise InputError("config", file, expected, problem=f"is {file!r}, which says what is not here: {names}")


def _wrapped(heading: str, parts: Iterable[str], ending: str = "") -> list[str]:
    """Return lines of the table: a heading, and its parts separated by commas; no lines if there are no parts."""
    parts = list(parts)
    if not parts:
        return []
    parts[-1] += ending
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 2 <= PARTS_WIDTH:
            lines[-1] += f", {part}"
        else:
            lines[-1] += ","
            lines.append(part)
    return [f"  {heading if number == 0 else '':{HEADING_WIDTH}}  {line}" for number, line in enumerate(lines)]
