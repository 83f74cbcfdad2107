"""The user's own data as a task, from a file, a folder or a hub data set.

The data has one row per problem, such as {"prompt": "6 * 7 = ?", "answer": "42"}. `read_user_data` makes rows of the
records that `records.py` reads. `ProblemIndex` finds rows that repeat or contradict earlier ones.

The held-out problems are in NAME.test.csv beside NAME.csv, in a file test.csv in the folder, or in the split that
`dataset_test_split` names. Without any of these, a hash of each problem decides, as for the other tasks: it holds out
about a tenth of the problems, and whether it holds out a problem does not depend on the other rows.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grpo_lab.base.checks import InputError, combine_errors
from grpo_lab.tasks.data_options import DEFAULT_DATA_OPTIONS, EXAMPLE_RECORD, DataOptions
from grpo_lab.tasks.records import RESERVED, LocatedRecord, Source, hub_source, local_source
from grpo_lab.tasks.rows import SPLITS, LazyRows, Row, Table, as_text, hash_of, row_with_messages, split_of_hash

ROLES = ("system", "user", "assistant", "tool")
MAX_COLLECTED_ERRORS = 100  # errors that are stored; further ones are only counted
EXPECTED_COLUMNS = ("answer", "tests", "sql")  # columns that say which completions are right


@dataclass(frozen=True)
class SplitRows:
    """The rows of one split: those of a table with these indices."""

    table: Table
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class UserData:
    """The problems of the user's own data without repetitions.

    splits: The problems to train on, "train", and those that are held out, "test".
    notes: Lines for the user on rows, columns and files that were left out.
    language: The language of most problems, "zh" or "en".
    """

    splits: dict[str, SplitRows]
    notes: list[str]
    language: str

    def rows(self, split: str) -> LazyRows:
        """Return the rows of a split in the order of the data; each access makes a new row."""
        split_rows = self.splits[split]
        return LazyRows(split_rows.indices, partial(row_with_messages, split_rows.table))

    def locations(self, split: str) -> list[str]:
        """Return the file and line of each row of a split, such as "mine.jsonl, line 7"."""
        split_rows = self.splits[split]
        return [split_rows.table.locations[index] for index in split_rows.indices]


def read_user_data(source: Path | str, options: DataOptions = DEFAULT_DATA_OPTIONS) -> UserData:
    """Read problems from a file, a folder or a hub data set, and split them into training and held-out problems.

    A prompt is a text, which becomes a message of the user, or a list of chat messages. All rows must have the same
    columns.

    source: The path of a file or a folder, or as a string the name of a data set on the hub.
    options: The columns, splits and template to read.

    Raises:
        InputError: with the location and the column of each error in the data, in one message.
    """
    data = hub_source(source, options) if isinstance(source, str) else local_source(source, options)
    table = _read_table(data, data.train, options)
    problems = ProblemIndex(table)
    data.notes += problems.checked_notes()
    if data.held_out is None:
        splits = {name: SplitRows(table, indices) for name, indices in problems.indices_by_split().items()}
    else:
        splits = _splits_of_source(data, data.held_out, problems, options)
    if not splits["train"]:
        raise InputError(
            data.name, problem="has no problem to train on; expected at least one, and better some hundreds"
        )
    if not splits["test"]:
        data.notes.append(
            f"{data.name} has no held-out problem, since a hash of the problem picks about one in ten; {data.advice}"
        )
    return UserData(splits, data.notes, _language(splits.values()))


def _language(splits: Iterable[SplitRows]) -> str:
    """Return "zh" if more than half of the prompts have Chinese characters, else "en"."""
    has_chinese = re.compile("[\u4e00-\u9fff]").search
    num_chinese = num_prompts = 0
    for split_rows in splits:
        prompts = split_rows.table.columns["prompt"]
        num_chinese += sum(1 for index in split_rows.indices if has_chinese(as_text(prompts[index])))
        num_prompts += len(split_rows)
    return "zh" if 2 * num_chinese > num_prompts else "en"


def _read_table(
    data: Source, records: Iterator[LocatedRecord], options: DataOptions, first: tuple[str, Row] | None = None
) -> Table:
    """Read records into a table, after checking that all of them have the same columns.

    first: The location and the row whose columns all rows must have; None for the first row read.
    """
    table = Table()
    errors: list[InputError] = []
    num_errors = 0
    for location, record in records:
        if not num_errors and not len(table) and isinstance(record, dict):
            data.check_first_record(record, location, options)
        try:
            row = _row_of_record(record, location, options)
            first = first or (location, row)
            _check_same_columns(location, row, *first)
        except InputError as error:
            num_errors += 1
            if len(errors) < MAX_COLLECTED_ERRORS:
                errors.append(error)
        else:
            if not num_errors:  # after an error, rows are checked but no longer needed
                table.append(location, row)
    if errors:
        raise combine_errors(errors, num_errors)
    if not len(table):
        expected = (
            f"expected one per line, such as {EXAMPLE_RECORD}" if data.suffix == ".jsonl" else "expected at least one"
        )
        raise InputError(data.name, data.name, expected, problem="has no row")
    return table


def _check_same_columns(location: str, row: Row, first_location: str, first_row: Row) -> None:
    if row.keys() != first_row.keys():
        names, expected_names = (", ".join(sorted(columns)) for columns in (row, first_row))
        expected = f"expected those of {first_location}: {expected_names}"
        raise InputError(location, names, expected, problem=f"has the columns {names}")


def _row_of_record(record: Any, location: str, options: DataOptions) -> Row:
    """Return a record as a row: its columns without reserved names, and the prompt and the answer under these names.

    The prompt is a text or a list of chat messages.
    """
    if isinstance(record, InputError):
        raise record
    if not isinstance(record, dict):
        expected = f"expected an object with a prompt, such as {EXAMPLE_RECORD}"
        raise InputError(location, record, expected, problem=f"is {record!r:.80}")
    options.check_needed_columns(record, location)
    prompt = options.prompt_of(record, location)
    if isinstance(prompt, str):
        is_well_formed = bool(prompt.strip())
    else:
        is_chat = isinstance(prompt, list) and bool(prompt) and all(map(_is_message, prompt))
        is_well_formed = is_chat and prompt[-1]["role"] != "assistant"
    if not is_well_formed:
        expected = "a text, or chat messages {'role': ..., 'content': ...} of which the assistant's is not the last"
        name = f"{location}: {options.prompt_name}"
        raise InputError(name, prompt, f"expected {expected}", problem=f"is {prompt!r:.80}")
    row = dict(record)
    for name in row.keys() & RESERVED:
        del row[name]
    if options.answer_column:
        row["answer"] = record[options.answer_column]
    row["prompt"] = prompt
    return row


def _is_message(message: Any) -> bool:
    has_role = isinstance(message, dict) and message.get("role") in ROLES
    return has_role and isinstance(message.get("content"), str) and bool(message["content"].strip())


class ProblemIndex:
    """An index of the different problems in a table, with lists of the rows that repeat or contradict earlier ones.

    Two rows are the same problem if their prompts are equal, apart from white space and system messages. If the table
    has none of the `EXPECTED_COLUMNS`, for example because an environment's `reset` reads other columns, then all other
    columns have to be equal as well.
    """

    def __init__(self, table: Table):
        self.table = table
        self.columns = {name: column for name, column in table.columns.items() if name != "prompt"}
        self.expected_columns = [name for name in EXPECTED_COLUMNS if name in self.columns]
        self.compares_whole_rows = bool(self.columns) and not self.expected_columns
        # The index of the first row of each problem, by the problem's hash: that of its prompt, or of its whole row.
        self.first_rows: dict[int, int] = {}
        # The hash that decides the split of a problem, by the problem's hash, if the two hashes differ.
        self._split_hashes: dict[int, int] = {}
        self._prompt_hashes: set[int] = set()  # only filled if whole rows are compared
        # Indices of rows that repeat an earlier problem and are left out.
        self.repeats: list[int] = []
        # Indices of rows with the prompt of an earlier row that are other problems because of their other columns.
        self.repeated_prompts: list[int] = []
        self.contradictions: list[InputError] = []
        for index in range(len(table)):
            self._add(index)

    def _add(self, index: int) -> None:
        text = _text_without_system(self.table.columns["prompt"][index])
        prompt_hash = hash_of("own", text)
        if self.compares_whole_rows:
            self._add_whole_row(index, text, prompt_hash)
            return
        first = self.first_rows.setdefault(prompt_hash, index)
        if first != index:
            self.repeats.append(index)
            self._compare_expected(index, first)

    def _add_whole_row(self, index: int, text: str, prompt_hash: int) -> None:
        values = sorted((name, repr(column[index])) for name, column in self.columns.items())
        row_hash = hash_of("own", text, values)
        is_new_prompt = prompt_hash not in self._prompt_hashes
        self._prompt_hashes.add(prompt_hash)
        if self.first_rows.setdefault(row_hash, index) != index:
            self.repeats.append(index)
        elif is_new_prompt:  # the first row with a prompt has the split that it would have without other columns
            self._split_hashes[row_hash] = prompt_hash
        else:
            self.repeated_prompts.append(index)

    def _compare_expected(self, index: int, first: int) -> None:
        """Add the row to the contradictions if it expects another answer than the first row of the problem."""
        columns = self.columns
        different = [name for name in self.expected_columns if columns[name][first] != columns[name][index]]
        if different:
            self.contradictions.append(_contradiction(self.table, index, first, different[0]))

    def checked_notes(self) -> list[str]:
        """Return lines for the user on repeated rows; raise InputError if a problem has two answers."""
        if self.contradictions:
            raise combine_errors(self.contradictions)
        notes = []
        if self.repeats:
            location = self.table.locations[self.repeats[0]]
            notes.append(f"{len(self.repeats)} rows repeat an earlier problem and are left out (first: {location})")
        if self.repeated_prompts:
            location = self.table.locations[self.repeated_prompts[0]]
            notes.append(
                f"{len(self.repeated_prompts)} rows have an earlier row's prompt but other columns, and count as "
                f"problems (first: {location})"
            )
        return notes

    def indices_by_split(self) -> dict[str, Sequence[int]]:
        """Return the indices of the problems in each split, which their hashes decide."""
        indices_by_split = {split: array("q") for split in SPLITS}
        for problem_hash, index in self.first_rows.items():
            split_hash = self._split_hashes.get(problem_hash, problem_hash)
            indices_by_split[split_of_hash(split_hash)].append(index)
        return dict(indices_by_split)


def _contradiction(table: Table, index: int, first: int, column: str) -> InputError:
    environment_hint = ", or, where an environment reads it, another name for this column"
    return InputError(
        table.locations[index],
        row_with_messages(table, index),
        f"expected one of them{environment_hint if column == 'answer' else ''}",
        problem=f"has the problem of {table.locations[first]} with another {column}",
    )


def _text_without_system(prompt: str | list[dict[str, str]]) -> str:
    """Return the text of a prompt without its system messages, with single spaces."""
    if isinstance(prompt, str):
        return " ".join(["user:", *prompt.split()])
    return " ".join("\n".join(f"{m['role']}: {m['content']}" for m in prompt if m["role"] != "system").split())


def _splits_of_source(
    data: Source, held_out_records: Iterator[LocatedRecord], problems: ProblemIndex, options: DataOptions
) -> dict[str, SplitRows]:
    """Return the training problems and those of the held-out records; raise InputError for a problem in both."""
    table = problems.table
    held_out_table = _read_table(data, held_out_records, options, (table.locations[0], table.row(0)))
    held_out = ProblemIndex(held_out_table)
    data.notes += held_out.checked_notes()
    errors = []
    for problem_hash, index in problems.first_rows.items():
        if problem_hash in held_out.first_rows:
            location = held_out_table.locations[held_out.first_rows[problem_hash]]
            errors.append(
                InputError(table.locations[index], problem=f"has the problem of {location}, which is held out")
            )
    if errors:
        raise combine_errors(errors)
    return {
        "train": SplitRows(table, array("q", problems.first_rows.values())),
        "test": SplitRows(held_out_table, array("q", held_out.first_rows.values())),
    }
