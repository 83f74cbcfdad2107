"""Mutants of the mistakes in circulation: those of `teaching.bugs`, and `errata.txt` with further lines."""

from collections.abc import Iterator
from pathlib import Path

from grpo_lab.formulas.lines import with_lines
from grpo_lab.teaching.bugs import BUGS
from tests.mutants.mutant import Mutant, files_of_tests, read


def errata_mutants() -> list[Mutant]:
    """Every planted mistake; a ValueError if an address is not in the source."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    bugs = [(name, f"{bug.module.replace('.', '/')}.py", bug.function, bug.lines) for name, bug in BUGS.items()]
    return [planted(*entry) for entry in (*bugs, *_entries(text))]


def _entries(text: str) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """(id, file, function, the line that is to stand at each address) of each block of lines."""
    for block in text.split("\n\n"):
        rows = [row for row in block.splitlines() if not row.startswith("#")]
        if rows:
            name, path, function = rows[0].split()
            changes = "\n".join(rows[1:]).replace("\n ", "\0").splitlines()
            lines = dict(change.replace("\0", "\n").split(": ", 1) for change in changes)
            yield name, path, function.strip("-"), lines


def planted(name: str, path: str, function: str, lines: dict[str, str]) -> Mutant:
    """The mistake in `function` of the file, or in its constants if that is ""."""
    source, said = read(path), " ".join(" ".join(lines.values()).split())
    return Mutant(f"{name}: {said}", path, function, source, with_lines(source, lines, function), files_of_tests(path))
