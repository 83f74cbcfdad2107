"""Every student is listed, with the notebook that counts or with the reason why there is none."""

import json
import os
from pathlib import Path

import pytest

from grpo_lab.course.exercises import exercises_of_notebook
from grpo_lab.course.variant import ClassKey
from tests.course.classroom import (
    LINUX,
    file_name,
    has_answer,
    notebook,
    submission,
    submissions_in,
    write_files,
    zipped,
)


def flip_a_byte(content: bytes) -> bytes:
    """Return an archive with one changed byte in the content of its file."""
    return content[:200] + bytes([content[200] ^ 0xFF]) + content[201:]


NOT_GRADED = {
    "broken.ipynb": (b"{not json", "JSONDecodeError"),
    "other.ipynb": (b'{"cells": 3}', "no list of cells"),
    "deep.ipynb": (b"[" * 200_000, "RecursionError"),
    "huge.ipynb": (b" " * 40_000_000, "40 MB"),
    "latin.ipynb": (submission(reinforce_loss="# Grüße").replace(b"\\u00fc", b"\xfc"), "UnicodeDecodeError"),
    "report.pdf": (b"%PDF", "report.pdf is not a notebook"),
    "carol/answer.py": (b"x = 1", "answer.py is not a notebook"),
    "noise.zip": (b"PK\x03\x04 and then nothing", "zip archive"),
    "bomb.zip": (zipped({"01.ipynb": b"\0" * 40_000_000}), "40 MB"),
    "matryoshka.zip": (
        zipped({"a.zip": zipped({"b.zip": zipped({"01.ipynb": notebook()})})}),
        "archive in an archive in an archive",
    ),
    "flipped.zip": (flip_a_byte(zipped({"01.ipynb": notebook()})), "from its archive"),
}


def test_submissions_that_are_not_graded_get_a_reason(tmp_path):
    write_files(tmp_path, {name: content for name, (content, _) in NOT_GRADED.items()})
    honest = (
        write_files(tmp_path, {"honest/01.ipynb": notebook(), ".hidden/01.ipynb": notebook()}) / "honest" / "01.ipynb"
    )
    (tmp_path / "bob").mkdir()
    reasons = {Path(name).parts[0].split(".")[0]: words for name, (_, words) in NOT_GRADED.items()}
    reasons |= {"honest": "", "bob": "no notebook (.ipynb)"}
    if LINUX:
        (tmp_path / "linked.ipynb").symlink_to(honest)
        (tmp_path / "via-link").mkdir()
        (tmp_path / "via-link" / honest.name).symlink_to(honest)
        os.mkfifo(tmp_path / "pipe.ipynb")
        reasons |= {"linked": "link", "via-link": "link", "pipe": "not an ordinary file"}
    problems = {name: work.problem for name, work in submissions_in(tmp_path).items()}
    assert problems.keys() == reasons.keys()
    assert not problems["honest"]
    assert not [name for name, words in reasons.items() if words not in problems[name]]


def test_one_of_several_files_of_a_student_is_graded_and_the_others_are_noted(tmp_path):
    """A readable file with the assignment's own name counts, else the first by name; notes list the others."""
    own = file_name("01")
    good = ("alice/01-final.ipynb", f"alice/{own}", "alice/01-other.ipynb", "bob/01-b.ipynb", "bob/01-a.ipynb")
    files = dict.fromkeys([*good, "carol/01-again.ipynb"], notebook())
    people = submissions_in(write_files(tmp_path, {**files, "bob/report.pdf": b"%PDF", f"carol/{own}": b"{"}))
    alice, bob, carol = people["alice"], people["bob"], people["carol"]
    assert (alice.file, bob.file, carol.file) == (own, "01-a.ipynb", "01-again.ipynb")
    assert not carol.problem
    assert sum("was left out" in note for note in alice.notes) == 2
    assert {note.split(" ")[0] for note in bob.notes} == {"01-b.ipynb", "report.pdf"}


@pytest.mark.parametrize("number", ["01", "09"])  # 09: functions that are to be repaired
@pytest.mark.parametrize("has_variants", [False, True])
def test_an_untouched_copy_never_counts_before_work(number, has_variants, tmp_path):
    key = ClassKey("a class") if has_variants else None
    first, *_ = exercises_of_notebook(number)
    done = submission(number, key=key, **{first: f"def {first}(*arguments):\n    return 0"})
    untouched, own = submission(number, key=key), file_name(number).removesuffix(".ipynb")
    for n, (blank, with_work) in enumerate([("", " (1)"), (" (1)", ""), ("-2", "-1"), ("", " mine")]):
        names = [f"{own}{blank}.ipynb", f"{own}{with_work}.ipynb"]
        folder = write_files(tmp_path / f"{n}", {f"a/{names[0]}": untouched, f"a/{names[1]}": done})
        (collected,) = submissions_in(folder, number).values()
        assert collected.file == names[1]
        assert collected.notes == [
            f"{names[0]} is for the same assignment, has nothing written in it, and was left out"
        ]


def test_begun_submission_counts_before_an_untouched_copy(tmp_path):
    """A broken cell, a cell that was turned into text, or an answer in words counts before an untouched copy."""
    blank, own = submission("01"), file_name("01")
    for change in ("broken", "text", "words"):
        document = json.loads(blank)
        for cell in document["cells"]:
            mark = cell["metadata"].get("grpo_lab", {})
            if mark == {"exercise": "reinforce_loss"} and change != "words":
                cell |= {"cell_type": "markdown"} if change == "text" else {"source": "def reinforce_loss(:"}
            if mark.get("role") == "written" and change == "words":
                cell["source"] = "The baseline does not depend on the action."
        files = {f"a/{own}": blank, "a/x.ipynb": json.dumps(document).encode()}
        (collected,) = submissions_in(write_files(tmp_path / change, files)).values()
        assert collected.file == "x.ipynb", change


def test_student_names_that_would_look_alike_get_numbers(tmp_path):
    names = ["Bob_77_assignsubmission_file_", "Bob_78_assignsubmission_file_", "Bob (77)", "zoe", "zoe ", "a\nb", "a b"]
    people = submissions_in(write_files(tmp_path, {f"{name}/01.ipynb": notebook() for name in names}))
    assert list(people) == ["a b", "a b 2", "Bob (77)", "Bob (77) 2", "Bob (78)", "zoe", "zoe 2"]
    assert [people[f"Bob ({number})"].platform_id for number in (77, 78)] == ["77", "78"]


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (["ada_1_9001_05_grpo_objective.ipynb", "ada_1_9002_05_grpo_objective-1.ipynb"], "05_grpo_objective-1.ipynb"),
        (["ada_1_9002_05_grpo_objective-2.ipynb", "ada_1_9001_05_grpo_objective-9.ipynb"], "05_grpo_objective-9.ipynb"),
        (["ada/05_grpo_objective.ipynb", "ada/05_grpo_objective (1).ipynb"], "05_grpo_objective (1).ipynb"),
        (["ada/05_grpo_objective(2).ipynb", "ada/05_grpo_objective (1).ipynb"], "05_grpo_objective(2).ipynb"),
    ],
)  # fmt: skip
def test_last_version_of_a_submission_counts(names, counts, tmp_path):
    write_files(tmp_path, {name: notebook("05") for name in names})
    (work,) = submissions_in(tmp_path, None).values()
    assert work.file == counts
    assert "is for the same assignment, and was left out" in work.notes[0]


@pytest.mark.parametrize(
    ("name", "student", "number"),
    [
        ("alice.ipynb", "alice", ""),
        ("Alice.IPYNB", "Alice", ""),
        ("alice.ipynb.txt", "alice", ""),
        ("alice.ipynb.json", "alice", ""),
        ("alice/01_policy_gradient.ipynb", "alice", ""),
        ("Ada Lovelace_1234567_assignsubmission_file_/My work.ipynb", "Ada Lovelace", "1234567"),
        ("Ada Lovelace_1234567_assignsubmission_file/x.ipynb", "Ada Lovelace", "1234567"),
        ("Ada Lovelace_1234567_assignsubmission_file_01_b.ipynb", "Ada Lovelace", "1234567"),
        ("lovelaceada_4711_815000_01_policy-1.ipynb", "lovelaceada", "4711"),
        ("lovelaceada_LATE_4711_815000_x.ipynb", "lovelaceada", "4711"),
        ("submission_98765/x.ipynb", "submission_98765", ""),
        ("anna_maria/01.ipynb", "anna_maria", ""),
        ("bob_2026.tar.ipynb", "bob_2026.tar", ""),
    ],
)
def test_file_names_of_platforms_give_student_and_number(name, student, number, tmp_path):
    (work,) = submissions_in(write_files(tmp_path, {name: notebook()})).values()
    assert (work.student, work.platform_id) == (student, number)
    assert work.assignment_stem == "01_policy_gradient"
    assert not work.problem
    assert has_answer(work)


@pytest.mark.parametrize("outer", ["", "class/"])
def test_class_archive_is_read_like_a_folder(outer, tmp_path):
    files = {f"{outer}alice/01.ipynb": notebook(), f"{outer}bob/x.ipynb": notebook(), f"{outer}carol/r.pdf": b"%PDF"}
    (tmp_path / "download.zip").write_bytes(zipped(files))
    people = submissions_in(tmp_path / "download.zip")
    assert set(people) == {"alice", "bob", "carol"}
    assert has_answer(people["bob"])
    assert "r.pdf is not a notebook" in people["carol"].problem


def test_students_file_name_cannot_claim_another_student(tmp_path):
    name = "mallory_LATE_666_90002_x_4711_assignsubmission_file_01.ipynb"
    work = submissions_in(write_files(tmp_path, {name: notebook()}))["mallory"]
    assert (work.platform_id, work.platform) == ("666", "canvas")


MOODLE = {f"Assignment 2/{name}_assignsubmission_file_/01.ipynb": notebook() for name in ("Ada_1", "Bob_2")}


@pytest.mark.parametrize("above", ["", "term/week 2/"])
def test_moodle_download_in_a_subfolder_is_recognised(above, tmp_path):
    unpacked = {f"{above}{name}": content for name, content in MOODLE.items()}
    assert set(submissions_in(write_files(tmp_path / "a", unpacked))) == {"Ada", "Bob"}
    assert set(submissions_in(write_files(tmp_path / "b", {f"{above}download.zip": zipped(MOODLE)}))) == {"Ada", "Bob"}


def test_archive_in_a_submission_cannot_name_other_students(tmp_path):
    """Otherwise one student could hand in work under another's name."""
    write_files(tmp_path / "a", {"Ada_1_assignsubmission_file_/x.zip": zipped(MOODLE)})
    assert set(submissions_in(tmp_path / "a")) == {"Ada"}
    write_files(tmp_path / "b", {"eve.zip": zipped(MOODLE), "Bob.ipynb": notebook()})
    assert set(submissions_in(tmp_path / "b")) == {"eve", "Bob"}
