"""A task of one's own, from a file: one row a line, such as {"prompt": "6 * 7 = ?", "answer": "42"}.

The problems that are held out are the lines of NAME.test.jsonl beside NAME.jsonl. Where there is no such file, a hash
of each problem decides, as for the other tasks: about a tenth of the file, the same tenth whatever else is in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.base.checks import InputError
from grpo_lab.tasks.rows import SPLITS, Row, chat_messages, json_lines, split_of

SUFFIX = ".jsonl"
# What reward functions get under these names; "gym" says which generator is run, which a file is not to say.
RESERVED = ("prompts", "completion", "completions", "completion_ids", "gym")
ROLES = ("system", "user", "assistant", "tool")
EXAMPLE = '{"prompt": "6 * 7 = ?", "answer": "42"}'


@dataclass(frozen=True)
class OwnProblems:
    """The problems of a file by split, each once and under its file and line, and notes about them for the user."""

    of_split: dict[str, dict[str, Row]]
    notes: list[str]

    def rows(self, split: str) -> list[Row]:
        """Copies of a split's rows, in the order of the file."""
        return [dict(row) for row in self.of_split[split].values()]

    def places(self, split: str) -> list[str]:
        """The file and line of each row, such as "mine.jsonl, line 7"."""
        return [*self.of_split[split]]


def own_problems(file: Path) -> OwnProblems:
    """Read a file, and the one with the held-out problems if it is there.

    A prompt is a text, which the user says, or a list of chat messages. The rows have the same columns throughout. What
    is wrong is named with its file and line.
    """
    notes: list[str] = []
    rows = _read(file)
    problems = _distinct(rows, notes)
    held_out_file = file.with_name(file.name.removesuffix(SUFFIX) + ".test" + SUFFIX)
    if held_out_file.is_file():
        rows |= _read(held_out_file, rows)
        held_out = _distinct(
            {location: row for location, row in rows.items() if location.startswith(held_out_file.name)}, notes
        )
        for key in problems.keys() & held_out.keys():
            raise InputError(problems[key], found=f"has the problem of {held_out[key]}, which is held out")
        locations_of_split = {"train": problems.values(), "test": held_out.values()}
    else:
        locations_of_split = {
            split: [location for key, location in problems.items() if split_of("own", key) == split] for split in SPLITS
        }
    if not locations_of_split["train"]:
        raise InputError(file.name, found="has no problem to train on; expected at least one, and better some hundreds")
    if not locations_of_split["test"]:
        notes.append(
            f"{file.name} has no held-out problem, since a hash of the problem picks about one in ten; "
            f"others in a file {held_out_file.name} beside it would be held out"
        )
    return OwnProblems(
        {
            split: {location: rows[location] for location in locations}
            for split, locations in locations_of_split.items()
        },
        notes,
    )


def _read(file: Path, earlier_rows: dict[str, Row] | None = None) -> dict[str, Row]:
    """The rows of a file by file and line, all with the columns of the first one, or of `earlier_rows`."""
    rows: dict[str, Row] = {}
    for number, value in json_lines(file):
        location = f"{file.name}, line {number}"
        rows[location] = _row(value, location)
        first_location, first_row = next(iter((earlier_rows or rows).items()))
        names, expected_names = (", ".join(sorted(row)) for row in (rows[location], first_row))
        if names != expected_names:
            raise InputError(
                location,
                names,
                f"expected those of {first_location}: {expected_names}",
                found=f"has the columns {names}",
            )
    if not rows:
        raise InputError(file.name, file, f"expected one a line, such as {EXAMPLE}", found="has no row")
    return rows


def _distinct(rows: dict[str, Row], notes: list[str]) -> dict[str, str]:
    """File and line of each problem, by the text of its messages except the system's; white space does not count.

    A repeated problem is noted; one with a second answer is refused.
    """
    location_of_problem: dict[str, str] = {}
    for location, row in rows.items():
        messages = (f"{m['role']}: {m['content']}" for m in row["prompt"] if m["role"] != "system")
        first_location = location_of_problem.setdefault(" ".join("\n".join(messages).split()), location)
        if rows[first_location] | {"prompt": None} != row | {"prompt": None}:
            contradiction = f"has the problem of {first_location} with another answer"
            raise InputError(location, row, "expected one of them", found=contradiction)
    first_locations = {*location_of_problem.values()}
    if repeats := [location for location in rows if location not in first_locations]:
        notes.append(f"{len(repeats)} rows repeat a problem before them and are left out (first: {repeats[0]})")
    return location_of_problem


def _row(value: Any, location: str) -> Row:
    if not isinstance(value, dict) or "prompt" not in value:
        expected = f"expected an object with a prompt, such as {EXAMPLE}"
        raise InputError(location, value, expected, found=f"is {value!r:.80}")
    if reserved := [name for name in RESERVED if name in value]:
        expected = "expected another name, since this one is the trainer's"
        raise InputError(location, reserved[0], expected, found=f"has the column {reserved[0]!r}")
    prompt = value["prompt"]
    messages = chat_messages(prompt) if isinstance(prompt, str) else prompt
    well_formed = isinstance(messages, list) and messages and all(map(_is_message, messages))
    if not well_formed or messages[-1]["role"] == "assistant":
        expected = "a text, or chat messages {'role': ..., 'content': ...} of which the assistant's is not the last"
        raise InputError(f"{location}: prompt", prompt, f"expected {expected}", found=f"is {prompt!r:.80}")
    return value | {"prompt": messages}


def _is_message(message: Any) -> bool:
    known = isinstance(message, dict) and message.get("role") in ROLES
    return known and isinstance(message.get("content"), str) and bool(message["content"].strip())
