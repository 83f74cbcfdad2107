"""Make mutants of mistakes in circulation, from `teaching.bugs` and from `errata.txt`."""

from pathlib import Path

from grpo_lab.formulas.lines import with_lines
from grpo_lab.teaching.bugs import BUGS, read_bugs
from tests.mutants.mutant import Mutant, files_of_tests, read


def errata_mutants() -> list[Mutant]:
    """Return a mutant for every mistake; raise ValueError if the address of a line is not in the source."""
    entries = (*BUGS.items(), *read_bugs(Path(__file__).with_suffix(".txt")))
    return [planted(name, f"{bug.module.replace('.', '/')}.py", bug.function, bug.lines) for name, bug in entries]


def planted(name: str, path: str, function: str, lines: dict[str, str]) -> Mutant:
    """Return the mutant with a mistake in `function` of the file, or in the module's constants if `function` is ""."""
    source, description = read(path), " ".join(" ".join(lines.values()).split())
    return Mutant(
        f"{name}: {description}", path, function, source, with_lines(source, lines, function), files_of_tests(path)
    )
