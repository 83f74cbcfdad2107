"""Mutants of anchored lines that no test can kill, because nothing that can be seen depends on the change.

`equivalent.txt` lists them, each with the reason. `python -m tests.mutants --family equivalent` runs them: where one is
killed, its reason is wrong.
"""

import re
from keyword import iskeyword
from pathlib import Path

from tests.mutants.mutant import Mutant


def listed(file: Path) -> dict[str, str]:
    """Each entry of such a list, and its reason: the line above the entries, which are indented by a space."""
    reason_by_entry: dict[str, str] = {}
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        why, *entries = block.strip("\n").split("\n ")
        reason_by_entry |= dict.fromkeys(entries, why)
    return reason_by_entry


LISTED = listed(Path(__file__).with_suffix(".txt"))
EQUIVALENT = {code: why for code, why in LISTED.items() if code.startswith("(")}
# Functions whose inputs are not differentiated, so that stopping a gradient in them changes nothing.
NO_GRADIENT = {name: why for name, why in LISTED.items() if name.isidentifier()}


def without_names(code: str) -> str:
    """The text with its variables numbered, which may be renamed; calls, attributes and keywords stay."""
    if "(" not in re.sub(r"^\(\d+\.\d+\) ", "", code):
        return code  # so short that others would look like it
    numbers: dict[str, str] = {}

    def numbered(name: re.Match) -> str:
        return name[0] if iskeyword(name[0]) else numbers.setdefault(name[0], f"v{len(numbers)}")

    return re.sub(r"(?<![\w.'])[a-zA-Z_]\w*(?![\w(']|=[^=])", numbered, code)


_REASONS = {without_names(entry): why for entry, why in EQUIVALENT.items()}


def reason(mutant: Mutant) -> str | None:
    """Why no test can kill the mutant, or None."""
    stops = mutant.name.endswith(".detach()")
    return _REASONS.get(without_names(mutant.name)) or (NO_GRADIENT.get(mutant.function) if stops else None)


def check(every: list[Mutant]) -> None:
    """Raise ValueError for an entry that fits none of the mutants of the anchored lines."""
    known = {without_names(mutant.name) for mutant in every} | {mutant.function for mutant in every}
    if stale := [entry for entry in EQUIVALENT if without_names(entry) not in known] + list(NO_GRADIENT.keys() - known):
        raise ValueError(f"equivalent.py has entries that fit no mutant: {stale}")
