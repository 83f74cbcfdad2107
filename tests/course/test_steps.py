"""How far a worker has come: it is believed only onward, and only along what was asked of it."""

import json

import pytest

from grpo_lab.course.grading.sandbox.progress import END, Progress

FIRST, SECOND = {"at": "cell", "cell": 3}, {"at": "cell", "cell": 5}
EXERCISE = {"at": "exercise", "exercise": "f"}


@pytest.fixture
def progress(tmp_path):
    with Progress(tmp_path / "out" / "progress", [3, 5], ["f"]) as made:
        yield made


@pytest.fixture
def say(tmp_path):
    def say(*lines: dict | str) -> None:
        with open(tmp_path / "out" / "progress", "a", encoding="utf-8") as file:
            file.writelines(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)

    return say


def test_each_step_counts_once(progress, say):
    assert not progress.went_on() and progress.where == {}
    for step in (FIRST, SECOND, EXERCISE, END):
        say(step)
        assert progress.went_on() and progress.where == step
        say(step)
        assert not progress.went_on() and progress.where == step


def test_several_steps_between_two_looks_and_what_is_written_after_them(progress, say):
    say(FIRST, SECOND, {}, "no JSON")
    assert progress.went_on() and progress.where == SECOND


def test_half_a_line_is_a_step_when_the_rest_is_there(progress, tmp_path):
    with open(tmp_path / "out" / "progress", "ab", buffering=0) as file:
        text = json.dumps(SECOND).encode()
        file.write(text[:7])
        assert progress.went_on() and progress.where == FIRST and not progress.went_on()
        file.write(text[7:] + b"\n")
        assert progress.went_on() and progress.where == SECOND


@pytest.mark.parametrize("forged", [{}, {"at": "cell", "cell": 99}, FIRST, "[" * 3_000, '"x"', "x" * 9_000])
def test_what_was_not_asked_for_is_no_step(forged, progress, say):
    say(FIRST, SECOND)
    assert progress.went_on()
    for _ in range(3):
        say(forged)
        assert not progress.went_on() and progress.where == SECOND


@pytest.mark.parametrize("forged", [{}, {"at": "nothing"}, "no JSON"])
def test_whatever_is_written_first_the_first_cell_has_begun(forged, progress, say):
    say(forged)
    assert progress.went_on() and progress.where == FIRST


def test_a_file_that_is_emptied_or_put_in_its_place_is_not_heard(progress, say, tmp_path):
    say(FIRST)
    assert progress.went_on()
    (tmp_path / "out" / "progress").write_text("", encoding="utf-8")
    assert not progress.went_on() and progress.where == FIRST
    (tmp_path / "out" / "progress").replace(tmp_path / "out" / "old")
    say(SECOND)
    assert not progress.went_on() and progress.where == FIRST
