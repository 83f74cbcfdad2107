"""Records of a file, a folder or a data set of the hub, each with the place where it stands, for errors.

Text files are read with Python's own csv and json: an error has to name the line, and "007" has to stay "007". Parquet
files are pyarrow's and data sets of the hub those of `datasets`. Nothing here runs code that comes with data.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grpo_lab.base.checks import InputError, InputFileError, InputPackageError
from grpo_lab.tasks.rows import checked_json, decoded_lines, parsed_lines

SEPARATORS = {".csv": ",", ".tsv": "\t"}
FILE_SUFFIXES = (".jsonl", ".json", *SEPARATORS, ".parquet")
HUB_ID_PATTERN = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
READERS = ("arrow", "cache", "csv", "json", "parquet", "text")  # of `datasets`: those that read plain data
INSTALL = 'pip install "grpo-lab[data]"'
Record = tuple[str, Any]  # where it stands, such as "mine.csv, line 7", and the record; an InputError where it is none


def file_records(file: Path) -> Iterator[Record]:
    """Each record of a file of one of the `FILE_SUFFIXES`; a dict, unless the file is not as it should be.

    What cannot be read is yielded as an InputError where reading can go on after it, and raised where it cannot.
    """
    if file.suffix == ".parquet":
        return _numbered(file.name, parquet_records(file))
    if file.suffix in SEPARATORS:
        return _csv_records(file)
    if file.suffix == ".json" and _is_list(file):
        return _json_list(file)
    return ((f"{file.name}, line {number}", value) for number, value in parsed_lines(file))


def files_in(folder: Path) -> list[Path]:
    """The files of the `FILE_SUFFIXES` in a folder, or else in its folder "data", in order of their names.

    Raises InputError unless there are some, all of one kind.
    """
    for directory in (folder, folder / "data"):
        files = [file for file in sorted(directory.glob("*")) if file.suffix in FILE_SUFFIXES and file.is_file()]
        files = [file for file in files if file.name not in ("dataset_info.json", "dataset_infos.json", "state.json")]
        if files:
            break
    else:
        problem = f"is {str(folder)!r}, " + ("which holds no file of data" if folder.exists() else "which is not there")
        raise InputFileError("task", folder, f"expected files that end in {', '.join(FILE_SUFFIXES)}", found=problem)
    if len(kinds := {file.suffix: file.name for file in reversed(files)}) > 1:
        problem = f"is {str(folder)!r}, which holds files of several kinds: {', '.join(sorted(kinds.values()))}"
        raise InputError("task", folder, "expected one kind; name one of the files, or move the others", found=problem)
    return files


def parquet_records(file: Path) -> Iterator[dict]:
    """The rows of a parquet file, some thousands in memory at a time."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        message = f"is {file.name}, and pyarrow, which reads parquet files, is not installed: pip install pyarrow"
        raise InputPackageError("task", file, found=message) from error
    try:
        with ParquetFile(file) as content:
            check_column_names(file.name, content.schema_arrow.names)
            for batch in content.iter_batches(batch_size=4096):
                yield from batch.to_pylist()
    except InputError:
        raise
    except Exception as error:  # of Arrow, of several classes
        message = f"is no parquet file that can be read: {type(error).__name__}: {error}"
        raise InputError(file.name, file, "restore it, or download it again", found=message) from error


def hub_records(name: str, config: str | None, split: str) -> Iterator[Record]:
    """The rows of one split of a data set of the Hugging Face hub, or of its copy in the cache of `datasets`.

    Only readers of plain data are used: a data set that brings a script, or pickled objects, is refused.
    """
    try:
        import datasets
    except ImportError as error:
        message = f"is {name!r}, and `datasets`, which reads it, is not installed: {INSTALL}"
        raise InputPackageError("task", name, found=message) from error
    if int(datasets.__version__.split(".")[0]) < 4:  # before, a data set could bring a script
        message = f"is {name!r}, and `datasets` {datasets.__version__} is too old: {INSTALL}"
        raise InputPackageError("task", name, found=message)
    try:
        builder = datasets.load_dataset_builder(name, config)
        reader = type(builder).__module__.removeprefix("datasets.packaged_modules.").split(".")[0]
        data = datasets.load_dataset(name, config, split=split) if reader in READERS else None
    except Exception as error:  # of the hub, of its HTTP client, of Arrow
        # The library's own words: which configurations or splits there are, which script was found, who has to log in.
        where = f"split {split!r}" + (f" of the configuration {config!r}" if config else "")
        message = f"is {name!r}, no folder here, and on the hub its {where} could not be loaded"
        expected = "the name must be OWNER/NAME, and --dataset_config and --dataset_split must be among those it has"
        message += f" ({type(error).__name__}: {' '.join(str(error).split())[:400]})"
        raise InputFileError("task", name, expected, found=message) from error
    if data is None:
        message = f"is {name!r}, which `datasets` reads by {reader!r}"
        raise InputError("task", name, f"expected one of {', '.join(READERS)}: others may run code", found=message)
    check_column_names(name, data.column_names)
    return _numbered(f"{name}, {split}", iter(data))


def check_column_names(name: str, columns: Iterable[str]) -> None:
    """Raise InputError for two columns of one name."""
    columns = list(columns)
    if duplicates := [column for column in dict.fromkeys(columns) if columns.count(column) > 1]:
        problem = f"has several columns with the name {', '.join(map(repr, duplicates))}"
        raise InputError(name, columns, "expected another name for each", found=problem)


def _numbered(name: str, values: Iterable[Any]) -> Iterator[Record]:
    return ((f"{name}, row {number}", value) for number, value in enumerate(values, 1))


def _csv_records(file: Path) -> Iterator[Record]:
    """A dict of texts a line; lines of another number of values, and what is no UTF-8, are errors."""
    separator = SEPARATORS[file.suffix]
    failed: list[InputError] = []
    lines = csv.reader(_decodable_lines(file, failed), delimiter=separator, strict=True)
    names: list[str] | None = None
    start = 1
    while True:
        where = f"{file.name}, line {start}"
        try:
            values = next(lines)
        except StopIteration:
            values = None
        except csv.Error as error:
            raise InputError(where, found=f"is no line of a CSV file in quotes and {separator!r}: {error}") from error
        if failed and names is None:
            raise failed[0]
        yield from ((error.argument, error) for error in failed)
        failed.clear()
        if values is None:
            return
        start = lines.line_num + 1
        if values and names is None:
            names = values
            _check_separator(file, names)
            check_column_names(file.name, filter(None, names))
        elif values and len(values) != len(names):
            problem = f"has {len(values)} values" if len(values) > 1 else f"has one value, {values[0][:60]!r}"
            expected = f"expected {len(names)}, for {', '.join(filter(None, names))}; a value with {separator!r} or an "
            expected += "end of line in it stands in quotes"
            yield where, InputError(where, values, expected, found=problem)
        elif values:  # a column without a name is the index that pandas writes
            yield where, {name: value for name, value in zip(names, values, strict=True) if name}


def _check_separator(file: Path, names: list[str]) -> None:
    """Raise InputError for a first line that another character than that of the kind of file divides."""
    separator = SEPARATORS[file.suffix]
    if len(names) == 1 and (dividers := [mark for mark in ",;\t|" if mark != separator and mark in names[0]]):
        problem = f"has one column, {names[0]!r:.80}"
        expected = f"expected {separator!r} between columns, and not {dividers[0]!r}; save it so"
        expected += ", or as .tsv" * (dividers[0] == "\t") + ", or as .csv" * (dividers[0] == ",")
        raise InputError(file.name, names, expected, found=problem)


def _decodable_lines(file: Path, failed: list[InputError]) -> Iterator[str]:
    """The lines that are UTF-8, with their ends; the errors of the others are put into the list."""
    for _, line in decoded_lines(file):
        if isinstance(line, InputError):
            failed.append(line)
            yield "\n"  # keeps count
        else:
            yield line


def _is_list(file: Path) -> bool:
    """True if the text of a JSON file begins with a bracket, and so is no JSON Lines."""
    with file.open("rb") as content:
        return content.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def _json_list(file: Path) -> Iterator[Record]:
    problem = "is no JSON in UTF-8: "
    try:
        values = json.loads(file.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{file.name}{line}", found=f"{problem}{getattr(error, 'msg', error)}") from error
    for where, value in _numbered(file.name, values):
        try:
            yield where, checked_json(value)
        except ValueError as error:
            yield where, InputError(where, found=f"{problem}{error}")
