"""List the mutants of anchored lines that no test can kill, because the change has no visible effect.

`equivalent.txt` has each of them with the reason. `python -m tests.mutants --family equivalent` runs them; if a test
kills one, its reason is wrong.
"""

import re
from keyword import iskeyword
from pathlib import Path

from tests.mutants.mutant import Mutant


def read_reasons(file: Path) -> dict[str, str]:
    """Return the reason for each entry of a list; the reason is the line above its entries, which are indented."""
    reason_by_entry: dict[str, str] = {}
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        why, *entries = block.strip("\n").split("\n ")
        reason_by_entry |= dict.fromkeys(entries, why)
    return reason_by_entry


_REASON_BY_ENTRY = read_reasons(Path(__file__).with_suffix(".txt"))
EQUIVALENT = {code: why for code, why in _REASON_BY_ENTRY.items() if code.startswith("(")}
# Functions whose inputs are not differentiated, so that stopping a gradient in them changes nothing.
NO_GRADIENT = {name: why for name, why in _REASON_BY_ENTRY.items() if name.isidentifier()}


def without_names(code: str) -> str:
    """Return the code with numbers in place of variables, so that renaming one does not matter."""
    if "(" not in re.sub(r"^\(\d+\.\d+\) ", "", code):
        return code  # too short: without names, different lines would be equal
    numbers: dict[str, str] = {}

    def numbered(name: re.Match) -> str:
        return name[0] if iskeyword(name[0]) else numbers.setdefault(name[0], f"v{len(numbers)}")

    return re.sub(r"(?<![\w.'])[a-zA-Z_]\w*(?![\w(']|=[^=])", numbered, code)


_REASONS = {without_names(entry): why for entry, why in EQUIVALENT.items()}


def reason_equivalent(mutant: Mutant) -> str | None:
    """Return why no test can kill the mutant, or None if a test has to."""
    stops_gradient = mutant.name.endswith(".detach()")
    return _REASONS.get(without_names(mutant.name)) or (NO_GRADIENT.get(mutant.function) if stops_gradient else None)


def check_entries(mutants: list[Mutant]) -> None:
    """Raise ValueError for an entry that fits none of the mutants of the anchored lines."""
    known = {without_names(mutant.name) for mutant in mutants} | {mutant.function for mutant in mutants}
    if stale := [entry for entry in EQUIVALENT if without_names(entry) not in known] + list(NO_GRADIENT.keys() - known):
        raise ValueError(f"equivalent.txt has entries that fit no mutant: {stale}")
