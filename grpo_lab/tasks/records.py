"""The records of a file, a folder or a hub data set, each with its location for error messages.

A `Source` has the records of both splits; `hub_source` and `local_source` make one, and the functions after them read
single files and splits.

Text files are read with Python's modules csv and json, so that an error can name the line and "007" stays "007".
Parquet files are read with pyarrow, and hub data sets with `datasets`. Code that comes with data is never run.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from grpo_lab.base.checks import InputError, InputFileError, InputPackageError
from grpo_lab.base.user_code import TRAINER_ARGUMENTS
from grpo_lab.tasks.data_options import DataOptions

SEPARATORS = {".csv": ",", ".tsv": "\t"}
FILE_SUFFIXES = (".jsonl", ".json", *SEPARATORS, ".parquet")
HUB_ID_PATTERN = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
READERS = ("arrow", "cache", "csv", "json", "parquet", "text")  # the readers of `datasets` for plain data
INSTALL = 'pip install "grpo-lab[data]"'
# Names of columns that are refused, since reward functions get other arguments with these names. "gym" names a
# generator to run, which a file may not do.
RESERVED = ("prompts", "completion", "completions", "completion_ids", "gym", *TRAINER_ARGUMENTS)
TRAIN = "train"
# The location of a record, such as "mine.csv, line 7", and the record, or an InputError if it cannot be read.
LocatedRecord = tuple[str, Any]


@dataclass
class Source:
    """A source of rows: one file, a folder of files, or a hub data set.

    name: The name of the file, the folder or the data set, for messages.
    suffix: The suffix of the files; "" for a hub data set.
    train: The records to train on.
    held_out: The held-out records; None if a hash of each problem decides.
    advice: A sentence on how the user can choose the held-out problems.
    notes: Lines for the user, as in `UserData`.
    """

    name: str
    suffix: str
    train: Iterator[LocatedRecord]
    held_out: Iterator[LocatedRecord] | None
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
            raise InputError(location, reserved[0], expected, problem=f"has the column {reserved[0]!r}")


def hub_source(name: str, options: DataOptions) -> Source:
    """Return a data set on the hub as a source, with the splits that the options name."""
    train, test = options.dataset_split or TRAIN, options.dataset_test_split
    held_out = None if test is None else hub_records(name, options.dataset_config, test)
    advice = "dataset_test_split names a split that would be held out"
    return Source(name, "", hub_records(name, options.dataset_config, train), held_out, advice, [])


def local_source(path: Path, options: DataOptions) -> Source:
    """Return a file or a folder as a source; a test file in the folder or beside the file has its held-out records."""
    if path.is_dir():
        files, held_out_files, notes = _files_of_folder(path, options)
        held_out_name = f"a file test{files[0].suffix} in it"
    else:
        options.check_unused("a file has none", ("dataset_config", "dataset_split", "dataset_test_split"))
        held_out_file = path.with_name(f"{path.name.removesuffix(path.suffix)}.test{path.suffix}")
        files = [path]
        held_out_files = [held_out_file] if held_out_file.is_file() else []
        notes = []
        held_out_name = f"a file {held_out_file.name} beside it"
    train = chain.from_iterable(map(file_records, files))
    held_out = chain.from_iterable(map(file_records, held_out_files)) if held_out_files else None
    return Source(path.name, files[0].suffix, train, held_out, f"others in {held_out_name} would be held out", notes)


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
            raise InputError(option, split, f"expected the beginning of {names:.300}", problem=problem)
    held_out = files_of_split(test)
    training = files_of_split(train) or [file for file in files if file not in held_out]
    if not training:
        raise InputError(
            "task", str(folder), f"expected a file {train}{files[0].suffix}", problem="has test files alone"
        )
    left_out = [file.name for file in files if file not in (*training, *held_out)]
    return training, held_out, [f"left out: {', '.join(left_out)}"] if left_out else []


def file_records(file: Path) -> Iterator[LocatedRecord]:
    """Return the records of a file that has one of the `FILE_SUFFIXES`, each with its location.

    In a correct file every record is a dict. In place of a record that cannot be read, an InputError is yielded, or
    raised if reading cannot continue after it.
    """
    if file.suffix == ".parquet":
        return _numbered(file.name, parquet_records(file))
    if file.suffix in SEPARATORS:
        return _csv_records(file)
    if file.suffix == ".json" and _is_list(file):
        return _json_list(file)
    return ((f"{file.name}, line {number}", value) for number, value in json_lines(file))


def files_in(folder: Path) -> list[Path]:
    """Return, sorted, the files with one of the `FILE_SUFFIXES` in a folder, or else in its subfolder "data".

    Raises:
        InputError: if there are no such files, or files with several suffixes.
    """
    for directory in (folder, folder / "data"):
        files = [file for file in sorted(directory.glob("*")) if file.suffix in FILE_SUFFIXES and file.is_file()]
        files = [file for file in files if file.name not in ("dataset_info.json", "dataset_infos.json", "state.json")]
        if files:
            break
    else:
        problem = f"is {str(folder)!r}, " + ("which holds no file of data" if folder.exists() else "which is not there")
        raise InputFileError("task", folder, f"expected files that end in {', '.join(FILE_SUFFIXES)}", problem=problem)
    name_by_suffix = {file.suffix: file.name for file in reversed(files)}
    if len(name_by_suffix) > 1:
        names = ", ".join(sorted(name_by_suffix.values()))
        problem = f"is {str(folder)!r}, which holds files of several kinds: {names}"
        raise InputError(
            "task", folder, "expected one kind; name one of the files, or move the others", problem=problem
        )
    return files


def parquet_records(file: Path) -> Iterator[dict]:
    """Yield the rows of a parquet file, with some thousands of them in memory at a time."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        message = f"is {file.name}, and pyarrow, which reads parquet files, is not installed: pip install pyarrow"
        raise InputPackageError("task", file, problem=message) from error
    try:
        with ParquetFile(file) as content:
            check_column_names(file.name, content.schema_arrow.names)
            for batch in content.iter_batches(batch_size=4096):
                yield from batch.to_pylist()
    except InputError:
        raise
    except Exception as error:  # Arrow raises errors of several classes
        message = f"is not a readable parquet file: {type(error).__name__}: {error}"
        raise InputError(file.name, file, "restore it, or download it again", problem=message) from error


def hub_records(name: str, config: str | None, split: str) -> Iterator[LocatedRecord]:
    """Return the rows of one split of a data set on the Hugging Face hub, or of its copy in the cache of `datasets`.

    Only readers of plain data are used. A data set with a script or with pickled objects is refused.
    """
    try:
        import datasets
    except ImportError as error:
        message = f"is {name!r}, and `datasets`, which reads it, is not installed: {INSTALL}"
        raise InputPackageError("task", name, problem=message) from error
    if int(datasets.__version__.split(".")[0]) < 4:  # earlier versions run scripts of data sets
        message = f"is {name!r}, and `datasets` {datasets.__version__} is too old: {INSTALL}"
        raise InputPackageError("task", name, problem=message)
    try:
        builder = datasets.load_dataset_builder(name, config)
        reader = type(builder).__module__.removeprefix("datasets.packaged_modules.").split(".")[0]
        data = datasets.load_dataset(name, config, split=split) if reader in READERS else None
    except Exception as error:  # the hub, its HTTP client and Arrow raise errors of several classes
        # The message includes the library's error, which lists the configurations and splits, names a script, or asks
        # to log in.
        split_of_config = f"split {split!r}" + (f" of the configuration {config!r}" if config else "")
        message = f"is {name!r}, no folder here, and on the hub its {split_of_config} could not be loaded"
        expected = "the name must be OWNER/NAME, and --dataset_config and --dataset_split must be among those it has"
        message += f" ({type(error).__name__}: {' '.join(str(error).split())[:400]})"
        raise InputFileError("task", name, expected, problem=message) from error
    if data is None:
        message = f"is {name!r}, which `datasets` reads by {reader!r}"
        raise InputError("task", name, f"expected one of {', '.join(READERS)}: others may run code", problem=message)
    check_column_names(name, data.column_names)
    return _numbered(f"{name}, {split}", iter(data))


def check_column_names(name: str, columns: Iterable[str]) -> None:
    """Raise InputError if several columns have the same name."""
    columns = list(columns)
    if duplicates := [column for column in dict.fromkeys(columns) if columns.count(column) > 1]:
        problem = f"has several columns with the name {', '.join(map(repr, duplicates))}"
        raise InputError(name, columns, "expected another name for each", problem=problem)


def _numbered(name: str, values: Iterable[Any]) -> Iterator[LocatedRecord]:
    return ((f"{name}, row {number}", value) for number, value in enumerate(values, 1))


def _csv_records(file: Path) -> Iterator[LocatedRecord]:
    """Yield a dict of strings for each line; a line that is not UTF-8 or has too few or many values is an error."""
    separator = SEPARATORS[file.suffix]
    names: list[str] | None = None
    for location, values in _csv_lines(file):
        if isinstance(values, InputError):
            if names is None:
                raise values
            yield location, values
        elif names is None:
            names = values
            _check_separator(file, names)
            check_column_names(file.name, filter(None, names))
        elif len(values) != len(names):
            problem = f"has {len(values)} values" if len(values) > 1 else f"has one value, {values[0][:60]!r}"
            expected = f"expected {len(names)}, for {', '.join(filter(None, names))}; a value with {separator!r} or an "
            expected += "end of line in it must be in quotes"
            yield location, InputError(location, values, expected, problem=problem)
        else:  # a column without a name, the index that pandas writes, is left out
            yield location, {name: value for name, value in zip(names, values, strict=True) if name}


def _csv_lines(file: Path) -> Iterator[tuple[str, list[str] | InputError]]:
    """Yield the location and the values of each line that is not empty; an InputError for a line that is not UTF-8.

    A line of CSV may have values with ends of lines in them; its location is that of its beginning.
    """
    separator = SEPARATORS[file.suffix]
    decoding_errors: list[InputError] = []
    reader = csv.reader(_decodable_lines(file, decoding_errors), delimiter=separator, strict=True)
    is_at_end = False
    while not is_at_end:
        location = f"{file.name}, line {reader.line_num + 1}"
        values: list[str] = []
        try:
            values = next(reader)
        except StopIteration:
            is_at_end = True
        except csv.Error as error:
            raise InputError(location, problem=f"is not a line of CSV separated by {separator!r}: {error}") from error
        yield from ((error.argument, error) for error in decoding_errors)
        decoding_errors.clear()
        if values:
            yield location, values


def _check_separator(file: Path, names: list[str]) -> None:
    """Raise InputError if the first line is divided by another character than the separator of the file's suffix."""
    separator = SEPARATORS[file.suffix]
    if len(names) == 1 and (dividers := [mark for mark in ",;\t|" if mark != separator and mark in names[0]]):
        problem = f"has one column, {names[0]!r:.80}"
        expected = f"expected {separator!r} between columns, and not {dividers[0]!r}; save it that way"
        expected += ", or as .tsv" * (dividers[0] == "\t") + ", or as .csv" * (dividers[0] == ",")
        raise InputError(file.name, names, expected, problem=problem)


def _decodable_lines(file: Path, decoding_errors: list[InputError]) -> Iterator[str]:
    """Yield the lines of a file in UTF-8 with their ends; append an error to the list for any other line."""
    for _, line in text_lines(file):
        if isinstance(line, InputError):
            decoding_errors.append(line)
            yield "\n"  # an empty line in its place, so that the CSV reader counts lines correctly
        else:
            yield line


def _is_list(file: Path) -> bool:
    """Return True if the text of a JSON file begins with a bracket, so that it is a list and not JSON Lines."""
    with file.open("rb") as content:
        return content.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def _json_list(file: Path) -> Iterator[LocatedRecord]:
    """Yield the values of a JSON file that is a list."""
    problem = "is not JSON in UTF-8: "
    try:
        values = json.loads(file.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{file.name}{line}", problem=f"{problem}{getattr(error, 'msg', error)}") from error
    for location, value in _numbered(file.name, values):
        try:
            yield location, checked_json(value)
        except ValueError as error:
            yield location, InputError(location, problem=f"{problem}{error}")


def text_lines(file: Path) -> Iterator[tuple[int, str | InputError]]:
    """Yield the number of each line, from 1, and the line with its end, or an InputError if it is not UTF-8."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except ValueError as error:
                yield number, _line_error(file, number, error, line)


def json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line of a JSON Lines file, and its value, or an InputError if it is not JSON.

    Empty lines are skipped.
    """
    for number, line in text_lines(file):
        if isinstance(line, InputError):
            yield number, line
        elif text := line.strip():
            try:
                yield number, checked_json(json.loads(text))
            except (ValueError, RecursionError) as error:
                yield number, _line_error(file, number, error, line.encode("utf-8", "replace"))


def checked_json(value: Any) -> Any:
    """Return the value; raise ValueError if it is not JSON: a NaN, or an unpaired surrogate such as "\\ud83d"."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    return value


def _line_error(file: Path, number: int, error: Exception, line: bytes) -> InputError:
    expected_format = "UTF-8" if file.suffix in (".csv", ".tsv") else "JSON in UTF-8"
    reason = getattr(error, "msg", error)
    line_error = InputError(f"{file.name}, line {number}", problem=f"is not {expected_format}: {reason}, {line[:60]!r}")
    line_error.__cause__ = error
    return line_error
