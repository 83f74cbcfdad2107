"""Where the user's own data is: one file, a folder of files or a hub data set, and which part of it is held out."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_lab.base.checks import InputError
from grpo_lab.base.user_code import TRAINER_ARGUMENTS
from grpo_lab.tasks.data_options import DataOptions
from grpo_lab.tasks.records import LocatedRecord, file_records, files_in, hub_records

# Names of columns that are refused, since reward functions get other arguments with these names. "gym" names a
# generator to run, which a file may not do.
RESERVED = ("prompts", "completion", "completions", "completion_ids", "gym", *TRAINER_ARGUMENTS)
TRAIN = "train"


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
    train, held_out = _records(files), _records(held_out_files) if held_out_files else None
    return Source(path.name, files[0].suffix, train, held_out, f"others in {held_out_name} would be held out", notes)


def _records(files: list[Path]) -> Iterator[LocatedRecord]:
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
            raise InputError(option, split, f"expected the beginning of {names:.300}", problem=problem)
    held_out = files_of_split(test)
    training = files_of_split(train) or [file for file in files if file not in held_out]
    if not training:
        raise InputError(
            "task", str(folder), f"expected a file {train}{files[0].suffix}", problem="has test files alone"
        )
    left_out = [file.name for file in files if file not in (*training, *held_out)]
    return training, held_out, [f"left out: {', '.join(left_out)}"] if left_out else []
