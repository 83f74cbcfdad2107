"""A task of one's own, from a file: one row a line, such as {"prompt": "6 * 7 = ?", "answer": "42"}.

The problems that are held out are the lines of NAME.test.jsonl beside NAME.jsonl. Where there is no such file, a hash
of each problem decides, as for the other tasks: about a tenth of the file, the same tenth whatever else is in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.commands.checks import InputError
from grpo_lab.tasks.rows import SPLITS, Row, asking, json_lines, split_of

SUFFIX = ".jsonl"
# What reward functions get under these names; "gym" says which generator is run, which a file is not to say.
TAKEN = ("prompts", "completion", "completions", "completion_ids", "gym")
ROLES = ("system", "user", "assistant", "tool")
EXAMPLE = '{"prompt": "6 * 7 = ?", "answer": "42"}'


@dataclass(frozen=True)
class Problem:
    """A row, and where it stands."""

    row: Row
    place: str


@dataclass(frozen=True)
class OwnProblems:
    """The problems of a file by split, each once, and what is to be said about them."""

    of_split: dict[str, list[Problem]]
    notes: list[str]

    def rows(self, split: str) -> list[Row]:
        """Copies, in the order of the file."""
        return [dict(problem.row) for problem in self.of_split[split]]

    def places(self, split: str) -> list[str]:
        """Where each of the rows stands, such as "mine.jsonl, line 7"."""
        return [problem.place for problem in self.of_split[split]]


def own_problems(file: Path) -> OwnProblems:
    """Read a file, and the one with the held-out problems if it is there.

    A prompt is a text, which the user says, or a list of chat messages. The rows have the same columns throughout.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a row that is not as it has to be, for a problem with two answers, and for a problem in both
            files; the message has file and line.
    """
    notes: list[str] = []
    problems = _distinct(_read(file), notes)
    beside = file.with_name(file.name.removesuffix(SUFFIX) + ".test" + SUFFIX)
    if beside.is_file():
        held_out = _distinct(_read(beside, next(iter(problems.values()))), notes)
        for key in problems.keys() & held_out.keys():
            where, other = problems[key].place, held_out[key].place
            raise InputError(where, key, "expected other problems to train on", found=f"has the problem of {other}")
        return OwnProblems({"train": [*problems.values()], "test": [*held_out.values()]}, notes)
    of_split = {split: [p for key, p in problems.items() if split_of("own", key) == split] for split in SPLITS}
    if not of_split["train"]:
        wanted = "expected at least one, and better some hundreds"
        raise InputError(file.name, file, wanted, found="has no problem to train on")
    if not of_split["test"]:
        notes.append(
            f"{file.name} has no held-out problem, since a hash of the problem picks about one in ten; "
            f"others in a file {beside.name} beside it would be held out"
        )
    return OwnProblems(of_split, notes)


def _read(file: Path, first: Problem | None = None) -> list[Problem]:
    """The rows of a file, all with the columns of the first."""
    problems = []
    for number, value in json_lines(file):
        problem = Problem(_row(value, place := f"{file.name}, line {number}"), place)
        first = first or problem
        names, those = (", ".join(sorted(one.row)) for one in (problem, first))
        if names != those:
            raise InputError(
                place, names, f"expected those of {first.place}: {those}", found=f"has the columns {names}"
            )
        problems.append(problem)
    if not problems:
        raise InputError(file.name, file, f"expected one a line, such as {EXAMPLE}", found="has no row")
    return problems


def _distinct(problems: list[Problem], notes: list[str]) -> dict[str, Problem]:
    """Each problem once, under all that is said in it but for the system's words; white space does not count.

    What repeats is noted, and what contradicts itself refused.
    """
    kept: dict[str, Problem] = {}
    repeats = []
    for problem in problems:
        said = (f"{m['role']}: {m['content']}" for m in problem.row["prompt"] if m["role"] != "system")
        before = kept.setdefault(" ".join("\n".join(said).split()), problem)
        if before.row | {"prompt": None} != problem.row | {"prompt": None}:
            said = f"has the problem of {before.place} with another answer"
            raise InputError(problem.place, problem.row, "expected one of them", found=said)
        if before is not problem:
            repeats.append(f"{problem.place} repeats {before.place}")
    if repeats:
        more = f", and {len(repeats) - 1} more" if len(repeats) > 1 else ""
        notes.append(f"a problem that stands there twice is taken once: {repeats[0]}{more}")
    return kept


def _row(value: Any, place: str) -> Row:
    if not isinstance(value, dict) or "prompt" not in value:
        wanted = f"expected an object with a prompt, such as {EXAMPLE}"
        raise InputError(place, value, wanted, found=f"is {value!r:.80}")
    if taken := [name for name in TAKEN if name in value]:
        wanted = "expected another name, since this one is the trainer's"
        raise InputError(place, taken[0], wanted, found=f"has the column {taken[0]!r}")
    prompt = value["prompt"]
    messages = asking(prompt) if isinstance(prompt, str) else prompt
    good = isinstance(messages, list) and messages and all(map(_is_message, messages))
    if not good or messages[-1]["role"] == "assistant":
        wanted = "a text, or chat messages {'role': ..., 'content': ...} of which the assistant's is not the last"
        raise InputError(f"{place}: prompt", prompt, f"expected {wanted}", found=f"is {prompt!r:.80}")
    return value | {"prompt": messages}


def _is_message(message: Any) -> bool:
    known = isinstance(message, dict) and message.get("role") in ROLES
    return known and isinstance(message.get("content"), str) and bool(message["content"].strip())
