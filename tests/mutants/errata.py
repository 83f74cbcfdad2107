"""Mutants of the mistakes in circulation: those of `teaching.bugs`, and `errata.txt` with further lines."""

from collections.abc import Iterator
from pathlib import Path

from grpo_lab.formulas.lines import with_lines
from grpo_lab.teaching.bugs import BUGS
from tests.mutants.mutant import Mutant, files_of_tests, read

# The faults of code among the mistakes; each has at least one mutant.
IDS = (
    "eos-trimmed", "eos-by-id", "retokenised", "off-by-one", "temperature-mismatch", "ratio-quotient",
    "old-not-detached", "clip-inverted", "clip-one-sided", "k1-as-loss", "kl-reversed", "kl-full-prob", "std-no-eps",
    "std-over-batch", "no-centre", "mean-over-padding", "microbatch-mean", "length-mean-mislabelled",
    "advantage-broadcast", "group-mixed", "pure-bf16-adamw", "reward-contains", "regex-no-dotall", "empty-matches",
    "string-equality", "ref-not-frozen", "dropout-on", "nonfinite-step", "cache-dropped",
    "answers-mixed", "old-not-frozen",
)  # fmt: skip


class StaleError(ValueError):
    """The list no longer fits the source."""


def errata_mutants() -> list[Mutant]:
    """Every planted mistake; an error if one of them no longer fits the source."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    bugs = [(name, f"{bug.module.replace('.', '/')}.py", bug.function, bug.lines) for name, bug in BUGS.items()]
    mutants = [planted(*entry) for entry in (*bugs, *_entries(text))]
    if missing := set(IDS) - {mutant.name.split(":")[0] for mutant in mutants}:
        raise StaleError(f"errata.txt has no mutant for {', '.join(sorted(missing))}")
    return mutants


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
    source = read(path)
    if name not in IDS or not lines:
        raise StaleError(f"{name}, {path}: expected one of {', '.join(IDS)}, and lines")
    try:
        mutated = with_lines(source, lines, function)
    except ValueError as error:
        raise StaleError(f"{name}, {path}: {error}") from None
    said = " ".join(" ".join(lines.values()).split())
    return Mutant(f"{name}: {said}", path, function, source, mutated, files_of_tests(path))
