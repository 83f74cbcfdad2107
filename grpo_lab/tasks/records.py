"""Reading the records of a file, a folder or a hub data set, each with its location for error messages.

Text files are read with Python's modules csv and json, so that an error can name the line and "007" stays "007".
Parquet files are read with pyarrow, and hub data sets with `datasets`. Code that comes with data is never run.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grpo_lab.base.checks import InputError, InputFileError, InputPackageError
from grpo_lab.tasks.file_lines import checked_json, json_lines, text_lines

SEPARATORS = {".csv": ",", ".tsv": "\t"}
FILE_SUFFIXES = (".jsonl", ".json", *SEPARATORS, ".parquet")
HUB_ID_PATTERN = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
READERS = ("arrow", "cache", "csv", "json", "parquet", "text")  # the readers of `datasets` for plain data
INSTALL = 'pip install "grpo-lab[data]"'
# The location of a record, such as "mine.csv, line 7", and the record, or an InputError if it cannot be read.
LocatedRecord = tuple[str, Any]


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
