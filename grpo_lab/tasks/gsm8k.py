"""GSM8K, 8,792 word problems of school mathematics (Cobbe et al., 2021), from a local folder or from a hub."""

import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path

from grpo_lab.base.checks import InputError, InputFileError, check_at_least, check_choice
from grpo_lab.base.files import modelscope_folder
from grpo_lab.tasks.records import HUB_ID_PATTERN, json_lines, parquet_records
from grpo_lab.tasks.rows import SPLITS, THINK_SYSTEM_PROMPT, Row, chat_messages

GSM8K_HUB_ID = "openai/gsm8k"
MODELSCOPE_IDS = ("AI-ModelScope/gsm8k", "modelscope/gsm8k", GSM8K_HUB_ID)
CONFIG = "main"  # the configuration of the data set, and the name of its folder
GSM8K_SUFFIXES = (".jsonl", ".parquet")  # suffixes of the files, in the order in which they are searched for
_FINAL_NUMBER = re.compile(r"####\s*(?P<number>-?\$?[\d,]*\.?\d+)\s*$")


# A problem that is not in GSM8K, with its answer. For small models, a worked example shows the format better than an
# instruction.
WORKED_EXAMPLE = (
    "A baker fills 4 trays with 6 rolls each and sells 9 of the rolls. How many rolls are left?",
    "<think>4 trays with 6 rolls each hold 4 * 6 = 24 rolls. When 9 are sold, 24 - 9 = 15 are left.</think>\n"
    "<answer>15</answer>",
)


def gsm8k_problems(split: str = "train", n: int | None = None, source: str | os.PathLike = GSM8K_HUB_ID) -> list[Row]:
    """Return the first `n` problems of a split of GSM8K, "train" (7,473 problems) or "test" (1,319); None for all.

    A system message asks for think and answer tags, and a worked example (`WORKED_EXAMPLE`) is the first turn. The
    answer is the number after "####", without commas and currency sign.

    source: A folder with train.jsonl and test.jsonl, or with parquet files whose names begin with the split, directly
        or in its subfolder "main"; or an id on the Hugging Face hub. GSM8K's own id is first searched in ModelScope's
        cache.
    """
    check_choice("split", split, SPLITS)
    if n is not None:
        check_at_least("n", n, 1)
    files = _files(_local_folder(source, split), split)
    records = (
        (f"{file.name}, row {number}", record)
        for file in files
        for number, record in enumerate(_records_of_file(file), start=1)
    )
    rows = [_row(record, location) for location, record in itertools.islice(records, n)]
    if n is not None and len(rows) < n:
        raise InputError("n", n, f"{os.fspath(source)!r} has {len(rows)} problems in the split {split!r}")
    return rows


def _row(record: object, location: str) -> Row:
    if isinstance(record, InputError):
        raise record
    question, solution = (record.get("question"), record.get("answer")) if isinstance(record, dict) else (None, None)
    final_number = _FINAL_NUMBER.search(solution) if isinstance(solution, str) else None
    if not isinstance(question, str) or final_number is None:
        expected = "expected an object with the texts question and answer, which ends in '#### <number>'"
        raise InputError(f"source: {location}", record, expected, problem=f"is {record!r:.200}")
    answer = re.sub(r"[,$]", "", final_number["number"])
    return {"prompt": chat_messages(question, THINK_SYSTEM_PROMPT, WORKED_EXAMPLE), "answer": answer}


def _local_folder(source: str | os.PathLike, split: str) -> Path:
    """Return the folder of a source, after downloading an id from the Hugging Face hub if it is not in its cache.

    For GSM8K's own id, ModelScope's cache is searched first: it needs no network, and the hub may not be reachable.
    """
    path, name = Path(source).expanduser(), str(source)
    if name == GSM8K_HUB_ID and not path.exists():
        folders = filter(None, (modelscope_folder(hub_id, "datasets") for hub_id in MODELSCOPE_IDS))
        if folder := next((folder for folder in folders if _files_in(folder, split)), None):
            return folder
    if path.exists() or name.endswith(GSM8K_SUFFIXES) or not HUB_ID_PATTERN.fullmatch(name):
        return path
    from huggingface_hub import snapshot_download  # imported here, since only a download needs it

    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=[f"{split}*", f"{CONFIG}/{split}*"]))
    except Exception as error:  # a failed download can raise many types of exceptions
        failed = f"is {name!r}, which could not be loaded ({type(error).__name__}: {error})"
        raise InputFileError("source", name, f"without a network, {_advice(split)}", problem=failed) from error


def _files(folder: Path, split: str) -> list[Path]:
    """Return the files of a split in a folder; raise InputFileError if there are none."""
    if files := _files_in(folder, split):
        return files
    verb = "holds" if folder.exists() else "is not there, so it has"
    message = f"is {os.fspath(folder)!r}, which {verb} no file of the split {split!r}"
    raise InputFileError("source", folder, _advice(split), problem=message)


def _files_in(folder: Path, split: str) -> list[Path]:
    """Return all files of a split from the first folder, and with the first suffix, that has any."""
    for directory in (folder, folder / CONFIG):
        for suffix in GSM8K_SUFFIXES:
            candidates = sorted(directory.glob(f"{split}*{suffix}"))
            if files := [file for file in candidates if re.match(rf"{split}(\W|$)", file.stem)]:
                return files
    return []


def _records_of_file(file: Path) -> Iterable[object]:
    """Return the records of a file; an InputError stands in place of one that is not JSON."""
    return parquet_records(file) if file.suffix == ".parquet" else (record for _, record in json_lines(file))


def _advice(split: str) -> str:
    return (
        f"put {split}.jsonl, one {{'question': ..., 'answer': '... #### 42'}} a line, or the files {split}*.parquet of "
        f"{GSM8K_HUB_ID}, into a folder and give that folder as source, in a shell as --task gsm8k:FOLDER"
    )
