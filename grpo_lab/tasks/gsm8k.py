"""GSM8K, 8,792 school problems in words (Cobbe et al., 2021), as rows of the same form as those of the other tasks.

A folder or a file on this machine will do as well as the hub, so that a machine without a network can train on it; and
every answer is checked to be a number, since the reward compares with it.
"""

import importlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grpo_lab.checks import check_at_least, check_choice
from grpo_lab.tasks.rows import SPLITS, THINK_SYSTEM_PROMPT, Row, asking, json_lines

HUB_ID = "openai/gsm8k"
CONFIG = "main"
KINDS = (".jsonl", ".parquet")
_FINAL = re.compile(r"####\s*(?P<number>-?\$?[\d,]*\.?\d+)\s*$")


# Ours, and in no split of GSM8K. What to say is shown better than told, above all to a small model.
EXAMPLE = (
    "A baker fills 4 trays with 6 rolls each and sells 9 of the rolls. How many rolls are left?",
    "<think>4 trays with 6 rolls each hold 4 * 6 = 24 rolls. When 9 are sold, 24 - 9 = 15 are left.</think>\n"
    "<answer>15</answer>",
)


def gsm8k_problems(
    split: str = "train", n: int | None = None, source: str | os.PathLike = HUB_ID, example: bool = False
) -> list[Row]:
    """The first `n` problems of one of GSM8K's own two splits; a system message asks for think and answer tags.

    Args:
        split: "train" (7,473 problems) or "test" (1,319).
        n: how many; None for all.
        source: a folder with train.jsonl and test.jsonl, or with parquet files whose names begin with the split, in it
            or in its folder "main"; one such file, which is then taken for the split asked for; or an id on the
            Hugging Face hub, which needs the package `datasets`.
        example: whether a worked example (`EXAMPLE`) stands before each problem, as one turn of the conversation.

    Returns:
        Rows {"prompt": messages, "answer": "5600"}: the number after "####", without commas and currency sign.

    Raises:
        ValueError: for another split, for n < 1 or above the number of problems, and for a row that is none of GSM8K's.
        FileNotFoundError: if the source is not there or holds no file of this split; the message says what to do.
        ImportError: if a package is missing that the source needs; the message names it.
    """
    check_choice("split", split, SPLITS)
    if n is not None:
        check_at_least("n", n, 1)
    shown = EXAMPLE if example else None
    rows = [_row(record, place, shown) for place, record in itertools.islice(_records(source, split), n)]
    if n is not None and len(rows) < n:
        raise ValueError(f"n is {n}; {os.fspath(source)!r} has {len(rows)} problems in the split {split!r}")
    return rows


def _row(record: object, place: str, example: tuple[str, str] | None) -> Row:
    texts = [record.get(name) for name in ("question", "answer")] if isinstance(record, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"source: {place} is {record!r:.80}; expected an object with the texts question and answer")
    found = _FINAL.search(record["answer"])
    if found is None:
        raise ValueError(f"source: the answer of {place} ends in {record['answer'][-40:]!r}; expected '#### <number>'")
    answer = re.sub(r"[,$]", "", found["number"])
    return {"prompt": asking(record["question"], THINK_SYSTEM_PROMPT, example), "answer": answer}


def _records(source: str | os.PathLike, split: str) -> Iterator[tuple[str, object]]:
    """Each record with its place, for messages."""
    path = Path(source).expanduser()
    if not path.exists() and _is_hub_id(source):
        parts = [(source, _from_hub(source, split))]
    else:
        files = [path] if path.is_file() else _files(path, split)
        parts = ((file.name, _read(file, split)) for file in files)
    for name, records in parts:
        for number, record in enumerate(records, start=1):
            yield f"{name}, row {number}", record


def _is_hub_id(source: str | os.PathLike) -> bool:
    name = r"[\w-][\w.-]*"
    return isinstance(source, str) and bool(re.fullmatch(f"{name}/{name}", source)) and not source.endswith(KINDS)


def _files(folder: Path, split: str) -> list[Path]:
    """All files of a split: one kind, from one folder."""
    for place in (folder, folder / CONFIG):
        for kind in KINDS:
            if files := [f for f in sorted(place.glob(f"{split}*{kind}")) if re.match(rf"{split}(\W|$)", f.stem)]:
                return files
    what = "holds" if folder.is_dir() else "is not there, so it has"
    said = f"source is {os.fspath(folder)!r}, which {what} no file of the split {split!r}"
    raise FileNotFoundError(f"{said}; {_advice(split)}")


def _read(file: Path, split: str) -> Iterable[object]:
    if file.suffix == ".jsonl":
        return (record for _, record in json_lines(file))
    if file.suffix == ".parquet":
        return _package("pyarrow.parquet", f"{file.name}, a parquet file", split).read_table(file).to_pylist()
    raise ValueError(f"source is {os.fspath(file)!r}; expected a file that ends in {' or '.join(KINDS)}")


def _from_hub(name: str, split: str) -> Iterable[dict]:
    hub = _package("datasets", name, split)
    try:
        return hub.load_dataset(name, CONFIG, split=split)
    except Exception as error:  # what a failed download raises differs from one cause to the next
        failed = f"source is {name!r}, which could not be loaded ({type(error).__name__}: {error})"
        raise FileNotFoundError(f"{failed}; without a network, {_advice(split)}") from error


def _package(module: str, source: str, split: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        advice = f"pip install {package}; or {_advice(split)}"
        raise ImportError(f"source is {source}, and {package}, which reads it, is not installed: {advice}") from error


def _advice(split: str) -> str:
    return (
        f"put {split}.jsonl, one {{'question': ..., 'answer': '... #### 42'}} a line, into a folder and give that "
        f"folder as source, in a shell as --task gsm8k:FOLDER (the files {split}*.parquet of {HUB_ID} will do too)"
    )
