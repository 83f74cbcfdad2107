"""GSM8K, 8,792 school problems in words (Cobbe et al., 2021), as rows of the same form as in `grpo_lab.tasks`.

Where this departs from a bare `load_dataset`, on purpose: a folder or a file on this machine will do, so that a machine
without a network can train on it; and every answer is checked to be a number, since the reward compares with it.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from grpo_lab.tasks.problems import SPLITS, THINK_SYSTEM_PROMPT, Row

HUB_ID = "openai/gsm8k"
CONFIG = "main"
KINDS = (".jsonl", ".parquet")
_FINAL = re.compile(r"####\s*(?P<number>-?\$?[\d,]*\.?\d+)\s*$")


def gsm8k_problems(split: str = "train", n: int | None = None, source: str | os.PathLike = HUB_ID) -> list[Row]:
    """The first `n` problems of one of GSM8K's own two splits; a system message asks for think and answer tags.

    Args:
        split: "train" (7,473 problems) or "test" (1,319).
        n: how many; None for all.
        source: a folder with train.jsonl and test.jsonl, or with parquet files whose names begin with the split, in it
            or in its folder "main"; one such file, which is then taken for the split asked for; or an id on the
            Hugging Face hub, which needs the package `datasets`.

    Returns:
        Rows {"prompt": messages, "answer": "5600"}: the number after "####", without commas and currency sign.

    Raises:
        ValueError: for another split, for n < 1 or above the number of problems, and for a row that is none of GSM8K's.
        FileNotFoundError: if the source is not there or holds no file of this split; the message says what to do.
        ImportError: if a package is missing that the source needs; the message names it.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; allowed are {', '.join(map(repr, SPLITS))}")
    if n is not None and n < 1:
        raise ValueError(f"n is {n}; it has to be at least 1, or None for all")
    rows = []
    for place, record in _records(source, split):
        rows.append(_row(record, place))
        if len(rows) == n:
            break
    if n is not None and len(rows) < n:
        raise ValueError(f"n is {n}; {os.fspath(source)!r} has {len(rows)} problems in split {split!r}")
    return rows


def _row(record: dict, place: str) -> Row:
    if not all(isinstance(record.get(name), str) for name in ("question", "answer")):
        raise ValueError(f"source: {place} has the columns {sorted(record)}; needed are the texts question and answer")
    found = _FINAL.search(record["answer"])
    if found is None:
        raise ValueError(f"source: the answer of {place} ends in {record['answer'][-40:]!r}; needed is '#### <number>'")
    messages = [{"role": "system", "content": THINK_SYSTEM_PROMPT}, {"role": "user", "content": record["question"]}]
    return {"prompt": messages, "answer": re.sub(r"[,$]", "", found["number"])}


def _records(source: str | os.PathLike, split: str) -> Iterator[tuple[str, dict]]:
    """Each row with its place, for messages."""
    path = Path(source).expanduser()
    if not path.exists():
        if not _is_hub_id(source):
            raise FileNotFoundError(f"source is {os.fspath(source)!r}, which is not there; {_advice(split)}")
        yield from _from_hub(os.fspath(source), split)
        return
    for file in [path] if path.is_file() else _files(path, split):
        yield from _read(file)


def _is_hub_id(source: str | os.PathLike) -> bool:
    return isinstance(source, str) and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", source) is not None \
        and not source.endswith(KINDS)  # fmt: skip


def _files(folder: Path, split: str) -> list[Path]:
    """All files of a split: one kind, from one folder."""
    for place in (folder, folder / CONFIG):
        for kind in KINDS:
            if files := [f for f in sorted(place.glob(f"{split}*{kind}")) if re.match(rf"{split}(\W|$)", f.stem)]:
                return files
    raise FileNotFoundError(f"source: {os.fspath(folder)!r} holds no file of the split {split!r}; {_advice(split)}")


def _read(file: Path) -> Iterator[tuple[str, dict]]:
    if file.suffix not in KINDS:
        raise ValueError(f"source is {os.fspath(file)!r}; allowed are files that end in {' or '.join(KINDS)}")
    records = _json_lines(file) if file.suffix == ".jsonl" else _parquet(file)
    for number, record in enumerate(records, start=1):
        yield f"{file.name}, row {number}", record


def _json_lines(file: Path) -> Iterator[dict]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"source: line {number} of {file.name} is no JSON: {error}") from error
            if not isinstance(record, dict):
                raise ValueError(f"source: line {number} of {file.name} is {line.strip()[:40]!r}; needed is an object")
            yield record


def _parquet(file: Path) -> Iterator[dict]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"source: {file.name} is a parquet file, and pyarrow is not installed: pip install pyarrow, or give the "
            "problems as .jsonl"
        ) from error
    return iter(pyarrow.parquet.read_table(file).to_pylist())


def _from_hub(name: str, split: str) -> Iterator[tuple[str, dict]]:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"source is {name!r}, and the package that loads it is not installed: pip install datasets; or "
            f"{_advice(split)}"
        ) from error
    try:
        loaded = datasets.load_dataset(name, CONFIG, split=split)
    except Exception as error:  # what a failed download raises differs from one cause to the next
        raise FileNotFoundError(
            f"source is {name!r}, which could not be loaded ({type(error).__name__}: {error}); without a network, "
            f"{_advice(split)}"
        ) from error
    for number, record in enumerate(loaded, start=1):
        yield f"{name}, row {number}", record


def _advice(split: str) -> str:
    return (
        f"put {split}.jsonl, one {{'question': ..., 'answer': '... #### 42'}} a line, into a folder and give that "
        f"folder as source (the files {split}*.parquet of {HUB_ID} will do too)"
    )
