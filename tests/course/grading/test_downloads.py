"""Whose a file is, and where a class begins, in the downloads of learning platforms."""

import pytest

from tests.course.platform_downloads import has_answer, notebook, submissions_in, write_files, zipped


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
