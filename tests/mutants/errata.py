"""Mutants of the mistakes in circulation: those of `teaching.bugs`, and `errata.txt` with further lines."""

from pathlib import Path

from grpo_lab.formulas.lines import with_lines
from grpo_lab.teaching.bugs import BUGS, read_bugs
from tests.mutants.mutant import Mutant, files_of_tests, read


def errata_mutants() -> list[Mutant]:
    """Every planted mistake; a ValueError if an address is not in the source."""
    entries = (*BUGS.items(), *read_bugs(Path(__file__).with_suffix(".txt")))
    return [planted(name, f"{bug.module.replace('.', '/')}.py", bug.function, bug.lines) for name, bug in entries]


def planted(name: str, path: str, function: str, lines: dict[str, str]) -> Mutant:
    """The mistake in `function` of the file, or in its constants if that is ""."""
    source, description = read(path), " ".join(" ".join(lines.values()).split())
    return Mutant(
        f"{name}: {description}", path, function, source, with_lines(source, lines, function), files_of_tests(path)
    )
