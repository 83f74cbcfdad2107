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
class OwnProblems:
    """The problems of a file by split, each once and under its place, and what is to be said about them."""

    of_split: dict[str, dict[str, Row]]
    notes: list[str]

    def rows(self, split: str) -> list[Row]:
        """Copies, in the order of the file."""
        return [dict(row) for row in self.of_split[split].values()]

    def places(self, split: str) -> list[str]:
        """Where each of the rows stands, such as "mine.jsonl, line 7"."""
        return [*self.of_split[split]]


def own_problems(file: Path) -> OwnProblems:
    """Read a file, and the one with the held-out problems if it is there.

    A prompt is a text, which the user says, or a list of chat messages. The rows have the same columns throughout. What
    is wrong is named with its file and line.
    """
    notes: list[str] = []
    rows = _read(file)
    problems = _distinct(rows, notes)
    beside = file.with_name(file.name.removesuffix(SUFFIX) + ".test" + SUFFIX)
    if beside.is_file():
        rows |= _read(beside, rows)
        held_out = _distinct({place: row for place, row in rows.items() if place.startswith(beside.name)}, notes)
        for key in problems.keys() & held_out.keys():
            raise InputError(problems[key], found=f"has the problem of {held_out[key]}, which is held out")
        places = {"train": problems.values(), "test": held_out.values()}
    else:
        places = {part: [p for key, p in problems.items() if split_of("own", key) == part] for part in SPLITS}
    if not places["train"]:
        raise InputError(file.name, found="has no problem to train on; expected at least one, and better some hundreds")
    if not places["test"]:
        notes.append(
            f"{file.name} has no held-out problem, since a hash of the problem picks about one in ten; "
            f"others in a file {beside.name} beside it would be held out"
        )
    return OwnProblems({part: {place: rows[place] for place in some} for part, some in places.items()}, notes)


def _read(file: Path, before: dict[str, Row] | None = None) -> dict[str, Row]:
    """The rows of a file by their place, all with the columns of the first, or of those before."""
    rows: dict[str, Row] = {}
    for number, value in json_lines(file):
        place = f"{file.name}, line {number}"
        rows[place] = _row(value, place)
        first, expected = next(iter((before or rows).items()))
        names, those = (", ".join(sorted(row)) for row in (rows[place], expected))
        if names != those:
            raise InputError(place, names, f"expected those of {first}: {those}", found=f"has the columns {names}")
    if not rows:
        raise InputError(file.name, file, f"expected one a line, such as {EXAMPLE}", found="has no row")
    return rows


def _distinct(rows: dict[str, Row], notes: list[str]) -> dict[str, str]:
    """The place of each problem, under all that is said in it but for the system's words; white space does not count.

    What repeats is noted, and what contradicts itself refused.
    """
    kept: dict[str, str] = {}
    for place, row in rows.items():
        said = (f"{m['role']}: {m['content']}" for m in row["prompt"] if m["role"] != "system")
        before = kept.setdefault(" ".join("\n".join(said).split()), place)
        if rows[before] | {"prompt": None} != row | {"prompt": None}:
            wrong = f"has the problem of {before} with another answer"
            raise InputError(place, row, "expected one of them", found=wrong)
    taken = {*kept.values()}
    if repeats := [place for place in rows if place not in taken]:
        notes.append(f"{len(repeats)} rows repeat a problem before them and are left out (first: {repeats[0]})")
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
