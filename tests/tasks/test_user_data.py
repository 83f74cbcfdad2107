"""Tests of a task from the user's own file: valid rows, held-out problems, errors for invalid files, and memory."""

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.tasks import find_task
from grpo_lab.tasks.task_table import MAX_EVALUATED
from grpo_lab.tasks.user_data import read_user_data


def lines_of(*rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8")


def problem(number: int, **columns) -> dict:
    return {"prompt": f"{number} + 1 = ?", "answer": str(number + 1)} | columns


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mine.jsonl"


def written(file, content: bytes):
    file.write_bytes(content)
    return file


def questions(rows):
    return [row["prompt"][-1]["content"] for row in rows]


def test_texts_become_chat_messages_every_column_is_kept_and_rows_are_copies(file):
    talk = [{"role": "system", "content": "Kurz."}, {"role": "user", "content": "你好"}]
    rows = [{"prompt": "1 + 1 = ?", "answer": 2, "level": 1}, {"prompt": talk, "answer": None, "level": None}]
    data = read_user_data(written(file, lines_of(*rows)))
    expected = rows[0] | {"prompt": [{"role": "user", "content": "1 + 1 = ?"}]}
    assert data.rows("train") + data.rows("test") == [expected, rows[1]]
    data.rows("train")[0]["answer"] = "changed"
    assert "changed" not in {row["answer"] for row in data.rows("train")}


def test_user_data_may_have_a_byte_order_mark_crlf_line_ends_and_empty_lines(file):
    content = b"\xef\xbb\xbf\r\n" + lines_of(problem(1)).replace(b"\n", b"\r\n") + b"   \n" + lines_of(problem(2))[:-1]
    data = read_user_data(written(file, content))
    assert questions(data.rows("train") + data.rows("test")) == ["1 + 1 = ?", "2 + 1 = ?"]
    assert data.locations("train") + data.locations("test") == ["mine.jsonl, line 2", "mine.jsonl, line 4"]


texts = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1).filter(str.strip)


@settings(max_examples=40)
@given(st.lists(texts, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_no_problem_is_both_trained_and_held_out_whatever_else_is_in_the_file(tmp_path_factory, prompts, rng):
    """A problem keeps its split when the file is shuffled, shortened or written with other white space."""
    sides = {}
    for name in ("a", "b"):
        some = prompts if name == "a" else [f"  {text} " for text in rng.sample(prompts, k=len(prompts))][:20]
        path = written(tmp_path_factory.mktemp(name) / "f.jsonl", lines_of(*({"prompt": text} for text in some)))
        try:
            data = read_user_data(path)
        except ValueError as error:  # a small file may have no problem to train on
            assert "has no problem to train on" in str(error)
            continue
        for split in ("train", "test"):
            for text in questions(data.rows(split)):
                assert sides.setdefault(" ".join(text.split()), split) == split


def test_a_tenth_is_held_out_or_what_a_file_beside_it_holds(file):
    data = read_user_data(written(file, lines_of(*map(problem, range(1000)))))
    train, test = data.rows("train"), data.rows("test")
    assert sorted(questions(train + test)) == sorted(f"{n} + 1 = ?" for n in range(1000))
    assert data.notes == []
    assert 0.08 < len(test) / 1000 < 0.12
    assert len(data.locations("test")) == len(test)
    beside = written(file.with_name("mine.test.jsonl"), lines_of(*map(problem, range(1000, 1003))))
    data = read_user_data(file)
    assert len(data.rows("train")) == 1000
    assert questions(data.rows("test")) == [f"{n} + 1 = ?" for n in range(1000, 1003)]
    assert data.locations("test")[0] == "mine.test.jsonl, line 1"
    written(beside, lines_of(problem(3000), problem(1)))
    with pytest.raises(ValueError, match="line 2 has the problem of mine.test.jsonl, line 2, which is held out"):
        read_user_data(file)
    written(beside, lines_of({"prompt": "a"}))
    with pytest.raises(ValueError, match="mine.test.jsonl, line 1 has the columns prompt; expected those of mine.json"):
        read_user_data(file)


def test_a_problem_that_repeats_is_taken_once_and_that_is_said(file):
    rows = [problem(1), problem(2), problem(1), {"prompt": " 1  + 1 = ? ", "answer": "2"}]
    data = read_user_data(written(file, lines_of(*rows)))
    assert len(data.rows("train") + data.rows("test")) == 2
    assert data.notes[0] == "2 rows repeat an earlier problem and are left out (first: mine.jsonl, line 3)"


def test_without_an_expected_column_all_columns_identify_a_problem(file):
    """An environment of TRL can have rows with one prompt and different seeds or secrets, which `reset` reads."""
    rows = [{"prompt": "Play.", "seed": seed} for seed in range(200)]
    data = read_user_data(written(file, lines_of(*rows, rows[3])))
    seeds = {split: {row["seed"] for row in data.rows(split)} for split in ("train", "test")}
    assert seeds["train"] | seeds["test"] == {*range(200)}
    assert not seeds["train"] & seeds["test"]
    assert 5 < len(seeds["test"]) < 40
    assert data.notes == [
        "1 rows repeat an earlier problem and are left out (first: mine.jsonl, line 201)",
        "199 rows have an earlier row's prompt but other columns, and count as problems (first: mine.jsonl, line 2)",
    ]
    written(file.with_name("mine.test.jsonl"), lines_of({"prompt": "Play.", "seed": 500}))
    assert [row["seed"] for row in read_user_data(file).rows("test")] == [500]
    written(file.with_name("mine.test.jsonl"), lines_of({"prompt": "Play.", "seed": 7}))
    with pytest.raises(ValueError, match="line 8 has the problem of mine.test.jsonl, line 1, which is held out"):
        read_user_data(file)


def test_a_prompt_that_occurs_once_is_in_the_same_split_whatever_columns_there_are(file):
    alone = read_user_data(written(file, lines_of(*({"prompt": f"{n}?"} for n in range(300)))))
    with_column = read_user_data(written(file, lines_of(*({"prompt": f"{n}?", "seed": 1} for n in range(300)))))
    assert questions(alone.rows("test")) == questions(with_column.rows("test"))


def test_a_repeated_problem_with_its_answer_is_a_repeat_whatever_the_other_columns(file):
    data = read_user_data(written(file, lines_of(*({**problem(n), "id": i} for i, n in enumerate((1, 2, 1))))))
    assert data.notes[0] == "1 rows repeat an earlier problem and are left out (first: mine.jsonl, line 3)"


def test_a_file_too_small_for_held_out_problems_is_noted_and_refuses_the_test_split(file):
    task = find_task(str(written(file, lines_of(problem(1)))))
    assert len(task.rows("train")) == 1
    assert "has no held-out problem" in task.user_data.notes[0]
    with pytest.raises(ValueError, match=r"mine.jsonl has no held-out problem.*others in a file mine.test.jsonl besid"):
        task.rows("test")


WRONG = {
    "line 2 is not JSON in UTF-8: Expecting property name": lines_of(problem(1)) + b"{prompt: 1}",
    "line 1 is not JSON in UTF-8: .*surrogates not allowed": b'{"prompt": "\\ud83d"}',
    "line 1 is not JSON in UTF-8: maximum recursion": b'{"prompt": "a", "x": ' + b"[" * 100_000,
    "line 1 is not JSON in UTF-8: 'utf-8' codec can't decode byte 0xe9": '{"prompt": "caf\u00e9"}'.encode("latin-1"),
    r"line 1 is \['a'\]; expected an object with a prompt": b'["a"]',
    "line 1: prompt is .*'content': 'a'}.*; expected a text, or chat": b'{"prompt": [{"content": "a"}]}',
    "of which the assistant's is not the last": b'{"prompt": [{"role": "assistant", "content": "b"}]}',
    "line 1 has the column 'gym'; expected another": b'{"prompt": "a", "gym": {"generator": "codeio"}}',
    "line 2 has the columns prompt; expected those of mine.jsonl, line 1: answer, prompt":
        lines_of(problem(1), {"prompt": "b"}),
    "line 3 has the problem of mine.jsonl, line 1 with another answer; expected one of them":
        lines_of(problem(1), problem(2), problem(1, answer="3")),
    "has no row; expected one per line, such as": b"\n \n",
}  # fmt: skip


def test_read_user_data_names_the_faulty_line(file):
    for message, content in WRONG.items():
        with pytest.raises(ValueError, match=f"mine.jsonl.*{message}"):
            read_user_data(written(file, content))


def test_find_task_of_a_file_has_its_rewards_and_splits(file):
    task = find_task(str(written(file, lines_of(*map(problem, range(300))))))
    assert (task.name, task.reward_funcs, task.language) == (str(file), ("accuracy",), "en")
    assert len(task.rows("train", 7)) == 7
    assert task.rows("train", 7) == task.rows("train")[:7]
    assert len(task.rows("test")) <= MAX_EVALUATED
    with pytest.raises(ValueError, match=r"n is 301; it must be at most \d+, the problems of mine.jsonl"):
        task.rows("train", 301)
    chinese = [{"prompt": f"{n}加1等于几？", "answer": str(n + 1)} for n in range(20)] + [problem(99)]
    assert find_task(str(written(file, lines_of(*chinese)))).language == "zh", "that of most problems"


def test_find_task_refuses_unknown_names_and_missing_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.txt", "mine", "gsm8k:", "sum"):
        with pytest.raises(ValueError, match="expected sums, .*, gym:NAME, or a file of your own that ends in .jsonl"):
            find_task(name)
    with pytest.raises(FileNotFoundError, match="task is 'mine.jsonl'; there is no such file in "):
        find_task("mine.jsonl")


@pytest.mark.slow
def test_a_row_of_a_file_takes_a_few_bytes_more_than_its_text(tmp_path):
    """The texts of a row have 20 and 6 bytes; a row as a dict with messages, in a list, takes 900 bytes."""
    file, count = tmp_path / "mine.csv", 20_000
    lines = (f"What is {n:06} plus 1?,{n + 1:06}\n" for n in range(count))
    file.write_text("prompt,answer\n" + "".join(lines), encoding="utf-8")
    read_user_data(file)  # a first call, so that imports and caches are not measured
    tracemalloc.start()
    try:
        data = read_user_data(file)
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data.rows("train")) + len(data.rows("test")) == count
    assert current < 100 * count, (current / count, peak / count)
    assert peak < 300 * count, (current / count, peak / count)
