"""A task from a file of one's own: what is taken, what is held out, and what is said of a file that is not right."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.tasks import find_task
from grpo_lab.tasks.own import own_problems
from grpo_lab.tasks.table import MANY


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


def test_texts_become_chat_messages_and_every_column_is_kept(file):
    talk = [{"role": "system", "content": "Kurz."}, {"role": "user", "content": "你好"}]
    rows = [{"prompt": "1 + 1 = ?", "answer": 2, "level": 1}, {"prompt": talk, "answer": None, "level": None}]
    own = own_problems(written(file, lines_of(*rows)))
    assert own.rows("train") + own.rows("test") == [
        rows[0] | {"prompt": [{"role": "user", "content": "1 + 1 = ?"}]},
        rows[1],
    ]


def test_marks_and_ends_of_lines_of_other_systems_and_empty_lines(file):
    content = b"\xef\xbb\xbf\r\n" + lines_of(problem(1)).replace(b"\n", b"\r\n") + b"   \n" + lines_of(problem(2))[:-1]
    own = own_problems(written(file, content))
    assert questions(own.rows("train") + own.rows("test")) == ["1 + 1 = ?", "2 + 1 = ?"]
    assert own.places("train") + own.places("test") == ["mine.jsonl, line 2", "mine.jsonl, line 4"]


texts = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1).filter(str.strip)


@settings(max_examples=40)
@given(st.lists(texts, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_no_problem_is_both_trained_and_held_out_whatever_else_is_in_the_file(tmp_path_factory, prompts, rng):
    """A problem keeps its side when the file is shuffled, cut and written with other white space."""
    sides = {}
    for name in ("a", "b"):
        some = prompts if name == "a" else [f"  {text} " for text in rng.sample(prompts, k=len(prompts))][:20]
        path = written(tmp_path_factory.mktemp(name) / "f.jsonl", lines_of(*({"prompt": text} for text in some)))
        try:
            own = own_problems(path)
        except ValueError as error:  # all of a small file may be held out
            assert "has no problem to train on" in str(error)
            continue
        for split in ("train", "test"):
            for text in questions(own.rows(split)):
                assert sides.setdefault(" ".join(text.split()), split) == split


def test_about_a_tenth_is_held_out_and_both_parts_are_the_whole(file):
    own = own_problems(written(file, lines_of(*map(problem, range(2000)))))
    train, test = own.rows("train"), own.rows("test")
    assert sorted(questions(train + test)) == sorted(f"{n} + 1 = ?" for n in range(2000)) and own.notes == []
    assert 0.08 < len(test) / 2000 < 0.12 and len(own.places("test")) == len(test)


def test_a_file_beside_it_holds_what_is_held_out(file):
    written(file, lines_of(*map(problem, range(40))))
    written(file.with_name("mine.test.jsonl"), lines_of(*map(problem, range(100, 103))))
    own = own_problems(file)
    assert len(own.rows("train")) == 40 and questions(own.rows("test")) == [f"{n} + 1 = ?" for n in range(100, 103)]
    assert own.places("test")[0] == "mine.test.jsonl, line 1"


def test_rows_are_copies(file):
    own = own_problems(written(file, lines_of(*map(problem, range(5)))))
    own.rows("train")[0]["answer"] = "changed"
    assert "changed" not in {row["answer"] for row in own.rows("train")}


def test_a_problem_that_repeats_is_taken_once_and_that_is_said(file):
    rows = [problem(1), problem(2), problem(1), {"prompt": " 1  + 1 = ? ", "answer": "2"}]
    own = own_problems(written(file, lines_of(*rows)))
    assert len(own.rows("train") + own.rows("test")) == 2
    assert own.notes[0] == (
        "a problem that stands there twice is taken once: mine.jsonl, line 3 repeats mine.jsonl, line 1, and 1 more"
    )


def test_too_few_to_hold_any_out_is_said_and_refused_where_they_are_asked_for(file):
    written(file, lines_of(problem(1)))
    task = find_task(str(file))
    assert len(task.rows("train")) == 1 and "has no held-out problem" in task.own.notes[0]
    with pytest.raises(
        ValueError, match=r"mine.jsonl has no held-out problem.*others in a file mine.test.jsonl beside"
    ):
        task.rows("test")


WRONG = {
    "no JSON": (lines_of(problem(1)) + b"{prompt: 1}", "mine.jsonl, line 2 is no JSON: Expecting property name"),
    "cut": (b'{"prompt": "1+\n', "line 1 is no JSON: Invalid control character at column 15"),
    "a name twice": (b'{"prompt": "a", "prompt": "b"}', "line 1 cannot be used: 'prompt' stands twice in one object"),
    "packed": (b"\x1f\x8b\x08\x00", "mine.jsonl is a packed file .gzip, zip or parquet.; expected text: unpack it"),
    "two values": (b'{"prompt": "a"} {"prompt": "b"}', "mine.jsonl, line 1 is no JSON: Extra data at column 17"),
    "a list": (b'["a"]', r"mine.jsonl, line 1 is \['a'\]; expected an object with a prompt, such as"),
    "no prompt": (b'{"question": "a"}', "line 1 is {'question': 'a'}; expected an object with a prompt"),
    "empty prompt": (b'{"prompt": " "}', "line 1: prompt is ' '; expected a text, or chat messages"),
    "a number": (b'{"prompt": 5}', "line 1: prompt is 5; expected a text"),
    "no role": (b'{"prompt": [{"content": "a"}]}', "line 1: prompt is .*; expected a text, or chat messages"),
    "unknown role": (b'{"prompt": [{"role": "me", "content": "a"}]}', "line 1: prompt is "),
    "answered": (
        b'{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
        "of which the assistant's is not the last",
    ),
    "a taken column": (b'{"prompt": "a", "completions": 1}', "line 1 has the column 'completions'; expected another"),
    "other columns": (
        lines_of(problem(1), {"prompt": "b"}),
        "mine.jsonl, line 2 has the columns prompt; expected those of mine.jsonl, line 1: answer, prompt",
    ),
    "two answers": (
        lines_of(problem(1), problem(2), problem(1, answer="3")),
        "mine.jsonl, line 3 has the problem of mine.jsonl, line 1 with another answer; expected one of them",
    ),
    "nothing": (b"", "mine.jsonl has no row; expected one a line, such as"),
    "empty lines": (b"\n \n", "mine.jsonl has no row"),
    "latin-1": ('{"prompt": "caf\u00e9"}'.encode("latin-1"), "line 1 is not UTF-8: byte 16 is 0xe9; save the file as"),
    "utf-16": ('{"prompt": "a"}'.encode("utf-16"), "mine.jsonl is in UTF-16; expected UTF-8"),
    "half a letter": (b'{"prompt": "\\ud83d"}', "mine.jsonl, line 1 cannot be used: .*surrogates not allowed"),
    "not a number": (b'{"prompt": "a", "answer": NaN}', "line 1 cannot be used: NaN is no number of JSON"),
    "nested": (b'{"prompt": "a", "x": ' + b"[" * 100_000, "mine.jsonl, line 1 cannot be used: nested too deeply"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_with_a_file_is_said_with_its_line(file, fault):
    content, message = WRONG[fault]
    with pytest.raises(ValueError, match=message):
        own_problems(written(file, content))


def test_a_problem_in_both_files_is_refused(file):
    written(file, lines_of(problem(1), problem(2)))
    written(file.with_name("mine.test.jsonl"), lines_of(problem(3), problem(2)))
    with pytest.raises(
        ValueError, match=r"mine.jsonl, line 2 has the problem of mine.test.jsonl, line 2; expected oth"
    ):
        own_problems(file)
    written(file.with_name("mine.test.jsonl"), lines_of({"prompt": "a"}))
    with pytest.raises(
        ValueError, match=r"mine.test.jsonl, line 1 has the columns prompt; expected those of mine.json"
    ):
        own_problems(file)


def test_the_task_of_a_file(file):
    written(file, lines_of(*map(problem, range(300))))
    task = find_task(str(file))
    assert (task.name, task.reward_funcs, task.language) == (str(file), ("accuracy",), "en")
    assert len(task.rows("train", 7)) == 7 and task.rows("train", 7) == task.rows("train")[:7]
    assert len(task.rows("test")) <= MANY
    with pytest.raises(ValueError, match=r"n is 301; it must be at most \d+, the problems of mine.jsonl"):
        task.rows("train", 301)


def test_the_instruction_is_in_the_language_of_most_problems(file):
    rows = [{"prompt": f"{n}加1等于几？", "answer": str(n + 1)} for n in range(20)] + [problem(99)]
    assert find_task(str(written(file, lines_of(*rows)))).language == "zh"


@pytest.mark.parametrize("name", ["mine.csv", "mine.json", "mine", "gsm8k:", "sum"])
def test_what_is_no_task(tmp_path, monkeypatch, name):
    (tmp_path / "mine.csv").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match="expected sums, .*, gsm8k, or a file of your own such as mine.jsonl"
    ) as caught:
        find_task(name)
    assert ("a file has to end in .jsonl" in str(caught.value)) == (name == "mine.csv")


def test_a_file_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="task is 'mine.jsonl'; there is no such file in "):
        find_task("mine.jsonl")
