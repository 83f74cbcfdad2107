"""Mutants of the mistakes in circulation: those of `teaching.bugs`, and `errata.txt` with further replacements."""

from collections.abc import Iterator
from pathlib import Path

from grpo_lab.teaching.bugs import BUGS
from tests.mutants.mutant import Mutant, make_mutant, read

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
    planted = [(name, f"{bug.module.replace('.', '/')}.py", bug.before, bug.after) for name, bug in BUGS.items()]
    mutants = [_planted(*entry) for entry in (*planted, *_entries(text))]
    if missing := set(IDS) - {mutant.name.split(":")[0] for mutant in mutants}:
        raise StaleError(f"errata.txt has no mutant for {', '.join(sorted(missing))}")
    return mutants


def _entries(text: str) -> Iterator[tuple[str, str, str, str]]:
    """(id, file, before, after) of each block of lines."""
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if lines:
            name, path = lines[0].split()
            before, after = ("\n".join(x[2:] for x in lines[1:] if x.startswith(sign)) for sign in "-+")
            yield name, path, before, after


def _planted(name: str, path: str, before: str, after: str) -> Mutant:
    source = read(path)
    if name not in IDS or source.count(before) != 1 or not after:
        raise StaleError(f"{name}: {path} holds this {source.count(before)} times; expected once:\n{before}")
    line = source[: source.index(before)].count("\n") + 1
    return make_mutant(f"{name}: {' '.join(after.split())}", path, line, source, source.replace(before, after))
