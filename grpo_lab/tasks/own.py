"""The user's own data as a task, from a file, a folder or a hub data set.

The data has one row per problem, such as {"prompt": "6 * 7 = ?", "answer": "42"}.

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
from grpo_lab.base.names import TRAINER_ARGUMENTS
from grpo_lab.tasks.data_options import DEFAULT_DATA_OPTIONS, EXAMPLE, DataOptions
from grpo_lab.tasks.lazy_rows import LazyRows, Table
from grpo_lab.tasks.records import Record, file_records, files_in, hub_records
from grpo_lab.tasks.rows import SPLITS, Row, as_text, chat_messages, hash_of, split_of_hash

# Names of columns that are refused, since reward functions get other arguments with these names. "gym" names a
# generator to run, which a file may not do.
RESERVED = ("prompts", "completion", "completions", "completion_ids", "gym", *TRAINER_ARGUMENTS)
EXPECTED = ("answer", "tests", "sql")  # columns that say which completions are right
ROLES = ("system", "user", "assistant", "tool")
MAX_COLLECTED_ERRORS = 100  # errors that are stored; further ones are only counted
TRAIN = "train"
RowsBySplit = dict[str, tuple[Table, Sequence[int]]]  # for each split, a table and the indices of the rows in it


@dataclass(frozen=True)
class OwnProblems:
    """The problems of the user's own data without repetitions.

    rows_by_split: The rows of each split.
    locations_by_split: The file and line of each row, by split.
    notes: Lines for the user on rows, columns and files that were left out.
    language: The language of most problems, "zh" or "en".
    """

    rows_by_split: dict[str, LazyRows]
    locations_by_split: dict[str, Sequence[str]]
    notes: list[str]
    language: str

    def rows(self, split: str) -> LazyRows:
        """Return the rows of a split in the order of the data; each access makes a new row."""
        return self.rows_by_split[split]

    def locations(self, split: str) -> list[str]:
        """Return the file and line of each row, such as "mine.jsonl, line 7"."""
        return [*self.locations_by_split[split]]


def own_problems(source: Path | str, options: DataOptions = DEFAULT_DATA_OPTIONS) -> OwnProblems:
    """Read problems from a file, a folder or a hub data set, and split them into training and held-out problems.

    A prompt is a text, which becomes a message of the user, or a list of chat messages. All rows must have the same
    columns.

    source: The path of a file or a folder, or as a string the name of a data set on the hub.
    options: The columns, splits and template to read.

    Raises:
        InputError: with the place and the column of each error in the data, in one message.
    """
    data = _hub_source(source, options) if isinstance(source, str) else _local_source(source, options)
    table = _read_table(data, data.train, options)
    problems = ProblemIndex(table)
    data.notes += problems.checked_notes()
    if data.held_out is None:
        split = _hashed_split(problems)
    else:
        split = _given_split(data, data.held_out, problems, options)
    if not split["train"][1]:
        raise InputError(data.name, found="has no problem to train on; expected at least one, and better some hundreds")
    if not split["test"][1]:
        data.notes.append(
            f"{data.name} has no held-out problem, since a hash of the problem picks about one in ten; {data.advice}"
        )
    return OwnProblems(
        {name: LazyRows(indices, partial(_row_of, table)) for name, (table, indices) in split.items()},
        {name: _Locations(indices, table.locations) for name, (table, indices) in split.items()},
        data.notes,
        _language(split.values()),
    )


class _Locations(Sequence):
    """A sequence of the locations of the rows with these indices, each made on access."""

    def __init__(self, indices: Sequence[int], locations: Sequence[str]):
        self._indices, self._locations = indices, locations

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return self._locations[self._indices[index]]


def _row_of(table: Table, index: int) -> Row:
    """Return a row of a table with its prompt as chat messages; a prompt that is a text becomes the user's message."""
    row = table.row(index)
    if isinstance(prompt := row["prompt"], str):
        row["prompt"] = chat_messages(prompt)
    return row


def _language(selected: Iterable[tuple[Table, Sequence[int]]]) -> str:
    """Return "zh" if more than half of the prompts have Chinese characters, else "en"."""
    has_chinese = re.compile("[\u4e00-\u9fff]").search
    num_chinese = num_prompts = 0
    for table, indices in selected:
        prompts = table.columns["prompt"]
        num_chinese += sum(1 for index in indices if has_chinese(as_text(prompts[index])))
        num_prompts += len(indices)
    return "zh" if 2 * num_chinese > num_prompts else "en"


@dataclass
class _Source:
    """A source of rows: one file, a folder of files, or a hub data set.

    name: The name of the file, the folder or the data set, for messages.
    suffix: The suffix of the files; "" for a hub data set.
    train: The records to train on.
    held_out: The held-out records; None if a hash of each problem decides.
    advice: A sentence on how the user can choose the held-out problems.
    notes: Lines for the user, as in `OwnProblems`.
    """

    name: str
    suffix: str
    train: Iterator[Record]
    held_out: Iterator[Record] | None
    advice: str
    notes: list[str]

    def check_first_record(self, record: dict, location: str, options: DataOptions) -> None:
        """Raise InputError if the first record lacks required columns, or has columns with reserved names.

        In a parquet file or a hub data set, where columns are hard to rename, reserved ones are left out with a note.
        """
        is_json = self.suffix in (".json", ".jsonl")
        location = location if is_json else location.rpartition(", ")[0]
        options.check_needed_columns(record, location)
        reserved = [name for name in RESERVED if name in record]
        if reserved and self.suffix in ("", ".parquet"):
            self.notes.append(f"left out: {', '.join(reserved)}, since the trainer has other things of that name")
        elif reserved:
            expected = "expected another name, since this one is the trainer's"
            raise InputError(location, reserved[0], expected, found=f"has the column {reserved[0]!r}")


def _hub_source(name: str, options: DataOptions) -> _Source:
    train, test = options.dataset_split or TRAIN, options.dataset_test_split
    held_out = None if test is None else hub_records(name, options.dataset_config, test)
    advice = "dataset_test_split names a split that would be held out"
    return _Source(name, "", hub_records(name, options.dataset_config, train), held_out, advice, [])


def _local_source(path: Path, options: DataOptions) -> _Source:
    if path.is_dir():
        files, held_out_files, notes = _files_of_folder(path, options)
        usual_place = f"a file test{files[0].suffix} in it"
    else:
        options.check_unused("a file has none", ("dataset_config", "dataset_split", "dataset_test_split"))
        held_out_file = path.with_name(f"{path.name.removesuffix(path.suffix)}.test{path.suffix}")
        files = [path]
        held_out_files = [held_out_file] if held_out_file.is_file() else []
        notes = []
        usual_place = f"a file {held_out_file.name} beside it"
    train, held_out = _records(files), _records(held_out_files) if held_out_files else None
    return _Source(path.name, files[0].suffix, train, held_out, f"others in {usual_place} would be held out", notes)


def _records(files: list[Path]) -> Iterator[Record]:
    return (record for file in files for record in file_records(file))


def _files_of_folder(folder: Path, options: DataOptions) -> tuple[list[Path], list[Path], list[str]]:
    """Return the files to train on, the files with held-out problems, and a note on other files."""
    files = files_in(folder / (options.dataset_config or ""))
    train, test = options.dataset_split or TRAIN, options.dataset_test_split or "test"

    def files_of_split(split: str) -> list[Path]:
        return [
            file for file in files if re.match(rf"{re.escape(split)}([^a-zA-Z]|$)|.*[.]{re.escape(split)}$", file.stem)
        ]

    for option, split in (("dataset_split", options.dataset_split), ("dataset_test_split", options.dataset_test_split)):
        if split is not None and not files_of_split(split):
            names = ", ".join(file.name for file in files)
            problem = f"is {split!r}, and no name of a file in {str(folder)!r} begins with it"
            raise InputError(option, split, f"expected the beginning of {names:.300}", found=problem)
    held_out = files_of_split(test)
    training = files_of_split(train) or [file for file in files if file not in held_out]
    if not training:
        raise InputError("task", str(folder), f"expected a file {train}{files[0].suffix}", found="has test files alone")
    left_out = [file.name for file in files if file not in (*training, *held_out)]
    return training, held_out, [f"left out: {', '.join(left_out)}"] if left_out else []


def _read_table(
    data: _Source, records: Iterator[Record], options: DataOptions, first: tuple[str, Row] | None = None
) -> Table:
    """Read records into a table, after checking that all of them have the same columns.

    first: The location and the row whose columns all rows must have; None for the first row read.
    """
    table = Table()
    errors: list[InputError] = []
    count = 0
    for location, record in records:
        if not count and not len(table) and isinstance(record, dict):
            data.check_first_record(record, location, options)
        try:
            row = _row_of_record(record, location, options)
            first = first or (location, row)
            _check_same_columns(location, row, *first)
        except InputError as error:
            count += 1
            if len(errors) < MAX_COLLECTED_ERRORS:
                errors.append(error)
        else:
            if not count:  # after an error, rows are checked but no longer needed
                table.append(location, row)
    if errors:
        raise combine_errors(errors, count)
    if not len(table):
        expected = f"expected one per line, such as {EXAMPLE}" if data.suffix == ".jsonl" else "expected at least one"
        raise InputError(data.name, data.name, expected, found="has no row")
    return table


def _check_same_columns(location: str, row: Row, first_location: str, first_row: Row) -> None:
    if row.keys() != first_row.keys():
        names, expected_names = (", ".join(sorted(columns)) for columns in (row, first_row))
        expected = f"expected those of {first_location}: {expected_names}"
        raise InputError(location, names, expected, found=f"has the columns {names}")


class ProblemIndex:
    """An index of the different problems in a table, with lists of the rows that repeat or contradict earlier ones.

    Two rows are the same problem if their prompts are equal, apart from white space and system messages. If the table
    has none of the `EXPECTED` columns, for example because an environment's `reset` reads other columns, then all other
    columns have to be equal as well.
    """

    def __init__(self, table: Table):
        self.table = table
        self.columns = {name: column for name, column in table.columns.items() if name != "prompt"}
        self.expected_columns = [name for name in EXPECTED if name in self.columns]
        self.compares_whole_rows = bool(self.columns) and not self.expected_columns
        # The index of the first row of each problem, by the problem's hash.
        self.first_rows: dict[int, int] = {}
        self._first_rows_of_prompts: dict[int, int] = {} if self.compares_whole_rows else self.first_rows
        # The hash that decides the split of a problem, by the problem's hash, if the two hashes differ.
        self._split_hashes: dict[int, int] = {}
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
        first = self._first_rows_of_prompts.setdefault(prompt_hash, index)
        if self.compares_whole_rows:
            self._add_whole_row(index, text, prompt_hash, is_new_prompt=first == index)
        elif first != index:
            self.repeats.append(index)
            self._compare_expected(index, first)

    def _add_whole_row(self, index: int, text: str, prompt_hash: int, is_new_prompt: bool) -> None:
        values = sorted((name, repr(column[index])) for name, column in self.columns.items())
        row_hash = hash_of("own", text, values)
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
        """Return notes on repeated rows; raise InputError if a problem has two answers."""
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

    def rows_by_split(self) -> dict[str, Sequence[int]]:
        """Return the indices of the problems in each split, which their hashes decide."""
        indices_by_split = {split: array("q") for split in SPLITS}
        for problem_hash, index in self.first_rows.items():
            split_hash = self._split_hashes.get(problem_hash, problem_hash)
            indices_by_split[split_of_hash(split_hash)].append(index)
        return dict(indices_by_split)


def _hashed_split(problems: ProblemIndex) -> RowsBySplit:
    return {split: (problems.table, indices) for split, indices in problems.rows_by_split().items()}


def _given_split(data: _Source, records: Iterator[Record], problems: ProblemIndex, options: DataOptions) -> RowsBySplit:
    """Return the training problems and those of the held-out records; raise InputError for a problem in both."""
    table = problems.table
    held_out_table = _read_table(data, records, options, (table.locations[0], table.row(0)))
    held_out = ProblemIndex(held_out_table)
    data.notes += held_out.checked_notes()
    errors = []
    for problem_hash, index in problems.first_rows.items():
        if problem_hash in held_out.first_rows:
            location = held_out_table.locations[held_out.first_rows[problem_hash]]
            errors.append(InputError(table.locations[index], found=f"has the problem of {location}, which is held out"))
    if errors:
        raise combine_errors(errors)
    return {
        "train": (table, array("q", problems.first_rows.values())),
        "test": (held_out_table, array("q", held_out.first_rows.values())),
    }


def _contradiction(table: Table, index: int, first: int, column: str) -> InputError:
    environment_hint = ", or, where an environment reads it, another name for this column"
    return InputError(
        table.locations[index],
        _row_of(table, index),
        f"expected one of them{environment_hint if column == 'answer' else ''}",
        found=f"has the problem of {table.locations[first]} with another {column}",
    )


def _text_without_system(prompt: str | list[dict[str, str]]) -> str:
    """Return the text of a prompt without its system messages, with single spaces."""
    if isinstance(prompt, str):
        return " ".join(["user:", *prompt.split()])
    return " ".join("\n".join(f"{m['role']}: {m['content']}" for m in prompt if m["role"] != "system").split())


def _row_of_record(record: Any, location: str, options: DataOptions) -> Row:
    """Return a record as a row: its columns without reserved names, and the prompt and the answer under these names.

    The prompt is a text or a list of chat messages.
    """
    if isinstance(record, InputError):
        raise record
    if not isinstance(record, dict):
        expected = f"expected an object with a prompt, such as {EXAMPLE}"
        raise InputError(location, record, expected, found=f"is {record!r:.80}")
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
        raise InputError(name, prompt, f"expected {expected}", found=f"is {prompt!r:.80}")
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
