"""GSM8K from files and from the hub: the number of each answer, one split at a time, and errors that say what to do."""

import json
import sys
import types

import pytest

from grpo_lab.rewards import format_reward, math_reward
from grpo_lab.tasks import TASKS, THINK_SYSTEM_PROMPT, find_task, gsm8k_problems
from grpo_lab.tasks.gsm8k import EXAMPLE, HUB_ID

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


def test_rows_of_a_folder(folder):
    rows = gsm8k_problems("train", source=folder)
    assert [row["answer"] for row in rows] == ANSWERS
    assert [row["prompt"] for row in rows] == [
        [{"role": "system", "content": THINK_SYSTEM_PROMPT}, {"role": "user", "content": record["question"]}]
        for record in RECORDS["train"]
    ]
    assert [row["answer"] for row in gsm8k_problems("test", source=str(folder))] == ["18"]


def test_a_worked_example_is_a_turn_before_the_question(folder):
    (bare,), (shown,) = (gsm8k_problems("test", source=folder, example=example) for example in (False, True))
    assert [message["role"] for message in shown["prompt"]] == ["system", "user", "assistant", "user"]
    assert tuple(message["content"] for message in shown["prompt"][1:3]) == EXAMPLE
    assert [shown["prompt"][0], shown["prompt"][-1]] == bare["prompt"] and shown["answer"] == bare["answer"]
    assert format_reward([EXAMPLE[1]]) == [1.0]


def test_the_task_of_the_command_shows_an_example_and_reads_a_folder(folder):
    task = find_task(f"gsm8k:{folder}")
    assert [row["answer"] for row in task.rows("train")] == ANSWERS and len(task.rows("train", 2)) == 2
    assert task.rows("test")[0]["prompt"][2]["content"] == EXAMPLE[1]
    assert task.name == f"gsm8k:{folder}" and task.reward_funcs == TASKS["gsm8k"].reward_funcs == ("final", "format")


def test_the_first_n(folder):
    assert gsm8k_problems("train", 2, folder) == gsm8k_problems("train", source=folder)[:2]
    with pytest.raises(ValueError, match="n is 5; .* has 4 problems in the split 'train'"):
        gsm8k_problems("train", 5, folder)


def test_the_reward_takes_the_answers(folder):
    answers = [row["answer"] for row in gsm8k_problems("train", source=folder)]
    said = ["72", "1,234,567", "-5.0", "1050.25"]
    completions = [f"<think>so</think><answer>{text}</answer>" for text in said]
    assert math_reward(completions, answer=answers, time_limit=60.0) == [1.0] * 4


@pytest.mark.parametrize("inside", ["", "main/"])
def test_rows_of_parquet_files_in_order(tmp_path, inside):
    write_parquet(tmp_path / f"{inside}train-00001-of-00002.parquet", RECORDS["train"][2:])
    write_parquet(tmp_path / f"{inside}train-00000-of-00002.parquet", RECORDS["train"][:2])
    write_parquet(tmp_path / f"{inside}trainer.parquet", RECORDS["test"])  # of another name, so not of this split
    assert [row["answer"] for row in gsm8k_problems("train", source=tmp_path)] == ANSWERS


def test_a_file_is_taken_for_the_split_asked_for(folder):
    (folder / "train.jsonl").rename(folder / "mine.jsonl")
    assert [row["answer"] for row in gsm8k_problems("test", source=folder / "mine.jsonl")] == ANSWERS


def test_from_the_hub(monkeypatch):
    asked = []
    fake = types.SimpleNamespace(load_dataset=lambda *names, split: asked.append((*names, split)) or RECORDS[split])
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert [row["answer"] for row in gsm8k_problems("train")] == ANSWERS
    assert asked == [(HUB_ID, "main", "train")]


def test_a_hub_that_does_not_answer(monkeypatch):
    def offline(*names, split):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=offline))
    with pytest.raises(
        FileNotFoundError, match="ConnectionError: no route.*put test.jsonl.*give that folder as source"
    ):
        gsm8k_problems("test", 3)


@pytest.mark.parametrize(("package", "kind"), [("datasets", None), ("pyarrow.parquet", ".parquet")])
def test_a_missing_package_is_named(monkeypatch, tmp_path, package, kind):
    monkeypatch.setitem(sys.modules, package, None)
    source = HUB_ID if kind is None else tmp_path / "train.parquet"
    if kind is not None:
        source.touch()
    with pytest.raises(ImportError, match=f"pip install {package.split('.')[0]}"):
        gsm8k_problems("train", source=source)


@pytest.mark.parametrize("source", ["./gsm8k", "/no/such/folder", "data/gsm8k.jsonl", "a/b/c"])
def test_a_place_that_is_not_there(source):
    with pytest.raises(FileNotFoundError, match="which is not there.*; put train.jsonl"):
        gsm8k_problems("train", source=source)


def test_a_folder_without_the_split(folder):
    (folder / "test.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="', which holds no file of the split 'test'; put test.jsonl"):
        gsm8k_problems("test", source=folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"question": "q", "answer": "42"}',
            "the answer of train.jsonl, row 2 ends in '42'; expected '#### <number>'",
        ),
        ('{"question": "q", "answer": "#### many"}', "ends in '#### many'"),
        (
            '{"question": "q", "answer": 42}',
            r"row 2 is .'question': 'q', 'answer': 42.; expected an object with the texts",
        ),
        ('{"frage": "q"}', r"train.jsonl, row 2 is .'frage': 'q'."),
        ("[1, 2]", r"train.jsonl, row 2 is \[1, 2\]; expected an object"),
        ("{", "train.jsonl, line 2 is no JSON: Expecting property name"),
    ],
)
def test_a_row_that_is_none_of_gsm8k(tmp_path, line, message):
    good = json.dumps(RECORDS["test"][0])
    (tmp_path / "train.jsonl").write_text(f"{good}\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        gsm8k_problems("train", source=tmp_path)
    assert len(gsm8k_problems("train", 1, tmp_path)) == 1  # what is not asked for is not read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "validation"}, "split is 'validation'; expected one of 'train', 'test'"),
        ({"n": 0}, "n is 0; it must be at least 1"),
    ],
)
def test_wrong_arguments(folder, arguments, message):
    with pytest.raises(ValueError, match=message):
        gsm8k_problems(**({"source": folder} | arguments))


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "train.csv").touch()
    with pytest.raises(ValueError, match=r"train.csv'; expected a file that ends in .jsonl or .parquet"):
        gsm8k_problems("train", source=tmp_path / "train.csv")
