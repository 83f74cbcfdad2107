"""Tests of reading GSM8K from files and from the hub: answers, splits, and errors that say what to do."""

import json
import sys

import pytest

from grpo_lab.rewards import format_reward, last_number_reward
from grpo_lab.tasks import TASKS, THINK_SYSTEM_PROMPT, find_task, gsm8k_problems
from grpo_lab.tasks.gsm8k import GSM8K_HUB_ID, WORKED_EXAMPLE

RECORDS = {
    "train": [
        {"question": "Natalia sold 48 clips, then half as many. How many?", "answer": "48/2 = <<48/2=24>>24\n#### 72"},
        {"question": "价格是多少？", "answer": "It costs #1 less.\n#### 1,234,567"},
        {"question": "What is the change?", "answer": "He owes.\n#### -5"},
        {"question": "How much a day?", "answer": "#### 3 of them\n#### $1,050.25"},
    ],
    "test": [{"question": "And now?", "answer": "#### 18\n"}],
}
ANSWERS = ["72", "1234567", "-5", "1050.25"]


def write_lines(file, records):
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    file.write_text("\n".join(lines) + "\n\n", encoding="utf-8")


def write_parquet(file, records):
    pq = pytest.importorskip("pyarrow.parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(sys.modules["pyarrow"].Table.from_pylist(records), file)


@pytest.fixture
def folder(tmp_path):
    for split, records in RECORDS.items():
        write_lines(tmp_path / f"{split}.jsonl", records)
    return tmp_path


def test_gsm8k_rows_of_a_folder(folder):
    rows = gsm8k_problems("train", source=folder)
    assert [row["answer"] for row in rows] == ANSWERS
    for row, record in zip(rows, RECORDS["train"], strict=True):
        messages = [(message["role"], message["content"]) for message in row["prompt"]]
        example = [("user", WORKED_EXAMPLE[0]), ("assistant", WORKED_EXAMPLE[1])]
        assert messages == [("system", THINK_SYSTEM_PROMPT), *example, ("user", record["question"])]
    assert format_reward([WORKED_EXAMPLE[1]]) == last_number_reward([WORKED_EXAMPLE[1]], answer=["15"]) == [1.0]
    assert [row["answer"] for row in gsm8k_problems("test", source=str(folder))] == ["18"]
    assert gsm8k_problems("train", 2, folder) == rows[:2]
    for wrong, arguments in {"n is 5": ("train", 5), "n is 0": ("train", 0), "split is 'dev'": ("dev", 1)}.items():
        with pytest.raises(ValueError, match=wrong):
            gsm8k_problems(*arguments, folder)


def test_gsm8k_task_of_a_folder(folder):
    task = find_task(f"gsm8k:{folder}")
    assert [row["answer"] for row in task.rows("test")] == ["18"]
    assert [row["answer"] for row in task.rows("train")] == ANSWERS
    assert task.name == f"gsm8k:{folder}"
    assert task.reward_funcs == TASKS["gsm8k"].reward_funcs


def test_gsm8k_rows_of_parquet_files_in_order(tmp_path):
    for inside in ("", "main/"):
        folder = tmp_path / f"parquet{len(inside)}"
        write_parquet(folder / f"{inside}train-00001-of-00002.parquet", RECORDS["train"][2:])
        write_parquet(folder / f"{inside}train-00000-of-00002.parquet", RECORDS["train"][:2])
        write_parquet(folder / f"{inside}trainer.parquet", RECORDS["test"])  # a file of no split
        assert [row["answer"] for row in gsm8k_problems("train", source=folder)] == ANSWERS


def test_gsm8k_hub_download_and_its_failure(monkeypatch, folder):
    calls = []

    def snapshot_download(name, repo_type, allow_patterns):
        if "test*" in allow_patterns:
            raise ConnectionError("no route")
        return calls.append((name, repo_type)) or str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert [row["answer"] for row in gsm8k_problems("train")] == ANSWERS
    assert calls == [(GSM8K_HUB_ID, "dataset")]
    with pytest.raises(FileNotFoundError, match="ConnectionError: no route.*put test.jsonl.*give that folder as sourc"):
        gsm8k_problems("test", 3)


@pytest.mark.parametrize("layout", ["hub/datasets/AI-ModelScope/gsm8k", "datasets/modelscope/gsm8k/main"])
def test_modelscopes_cache_comes_before_the_hub(monkeypatch, tmp_path, layout):
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    write_lines(tmp_path / layout / "train.jsonl", RECORDS["train"])
    calls = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *name, **_: calls.append(name) or str(tmp_path))
    assert [row["answer"] for row in gsm8k_problems("train")] == ANSWERS
    assert not calls
    # ModelScope's cache lacks this split, or it has no data set with this id.
    for split, source in (("test", GSM8K_HUB_ID), ("train", "somebody/gsm8k")):
        with pytest.raises(FileNotFoundError, match="holds no file of the split"):
            gsm8k_problems(split, source=source)
    assert calls == [(GSM8K_HUB_ID,), ("somebody/gsm8k",)]


def test_gsm8k_refuses_a_missing_or_other_source(folder):
    for source in ("./gsm8k", "/no/such/folder", "data/gsm8k.jsonl", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="which is not there.*; put train.jsonl"):
            gsm8k_problems("train", source=source)
    (folder / "test.jsonl").rename(folder / "train.csv")
    with pytest.raises(FileNotFoundError, match="', which holds no file of the split 'test'; put test.jsonl"):
        gsm8k_problems("test", source=folder)


WRONG = {
    '{"question": "q", "answer": "42"}': "row 2 is .*'42'}; expected .* ends in '#### <number>'",
    '{"question": "q", "answer": "#### many"}': "'#### many'}; expected",
    '{"question": "q", "answer": 42}': r"row 2 is .*'answer': 42.; expected",
    "[1, 2]": r"train.jsonl, row 2 is \[1, 2\]; expected an object",
    "{": "train.jsonl, line 2 is not JSON in UTF-8: Expecting property name",
}


def test_gsm8k_refuses_a_row_of_another_form(tmp_path):
    for line, message in WRONG.items():
        (tmp_path / "train.jsonl").write_text(f"{json.dumps(RECORDS['test'][0])}\n{line}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            gsm8k_problems("train", source=tmp_path)
        assert len(gsm8k_problems("train", 1, tmp_path)) == 1  # further rows are not read
