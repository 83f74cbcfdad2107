"""Files as students and platforms send them: with all kinds of names, in archives, in outer folders.

Each is either graded or listed with a reason.
"""

import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from grpo_lab.course.grading import untrusted
from grpo_lab.course.grading.collect import find_submissions
from grpo_lab.course.grading.downloads import Submission
from grpo_lab.course.grading.untrusted import MAX_DEPTH
from grpo_lab.course.release import of_notebook
from grpo_lab.course.variant import ClassKey
from tests.course.submitted import LINUX, file_name, submission

RLOO = "def reinforce_loss(seq_logp, weights):\n    return seq_logp"


def notebook(number: str = "01") -> bytes:
    return submission(number, **{"reinforce_loss": RLOO} if number == "01" else {})


def submissions_in(folder: Path, assignment: str | None = "01") -> dict[str, Submission]:
    return {work.student: work for work in find_submissions(folder, assignment)[1]}


def written(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a folder, and return the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def has_answer(work) -> bool:
    return any(cell.source == RLOO for cell in work.cells)


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
def test_whose_it_is(name, student, number, tmp_path):
    (work,) = submissions_in(written(tmp_path, {name: notebook()})).values()
    assert (work.student, work.platform_id) == (student, number)
    assert work.assignment == "01_policy_gradient" and not work.problem and has_answer(work)


def zipped(files: dict[str, bytes]) -> bytes:
    paper = io.BytesIO()
    with zipfile.ZipFile(paper, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return paper.getvalue()


def test_archives_are_read_like_folders(tmp_path):
    archives = {
        "grace.zip": {"hw/deep/My Notebook.ipynb": notebook(), "__MACOSX/._x": b"x"},
        "in-folder/hand-in.zip": {file_name("01"): notebook()},
        "nested.zip": {"inner.zip": zipped({"01.ipynb": notebook()})},
        "climbing.zip": {"../../escaped.ipynb": notebook()},
        "nameless.zip": {"01.ipynb": notebook(), "QQQQQQQQ": b""},
    }
    files = {name: zipped(members) for name, members in archives.items()}
    files["nameless.zip"] = files["nameless.zip"].replace(b"QQQQQQQQ", bytes(8))
    assert zipfile.ZipFile(io.BytesIO(files["nameless.zip"])).infolist()[-1].filename == ""
    people = submissions_in(written(tmp_path, files))
    assert set(people) == {"grace", "in-folder", "nested", "climbing", "nameless"}
    assert all(has_answer(work) for work in people.values())
    assert not list(tmp_path.parent.glob("*escaped*")), "nothing is unpacked"


@pytest.mark.parametrize("outer", ["", "class/"])
def test_a_class_as_an_archive(outer, tmp_path):
    files = {f"{outer}alice/01.ipynb": notebook(), f"{outer}bob/x.ipynb": notebook(), f"{outer}carol/r.pdf": b"%PDF"}
    (tmp_path / "download.zip").write_bytes(zipped(files))
    people = submissions_in(tmp_path / "download.zip")
    assert set(people) == {"alice", "bob", "carol"}
    assert has_answer(people["bob"]) and "r.pdf is not a notebook" in people["carol"].problem


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


def test_nothing_is_silently_missing_and_what_is_not_graded_gets_its_reason(tmp_path):
    written(tmp_path, {name: content for name, (content, _) in NOT_GRADED.items()})
    honest = written(tmp_path, {"honest/01.ipynb": notebook(), ".hidden/01.ipynb": notebook()}) / "honest" / "01.ipynb"
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
    assert problems.keys() == reasons.keys() and not problems["honest"]
    assert not [name for name, words in reasons.items() if words not in problems[name]]


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf" + notebook(), notebook().decode().encode("utf-16")])
def test_encodings(content, tmp_path):
    assert has_answer(submissions_in(written(tmp_path, {"alice.ipynb": content}))["alice"])


def test_two_files_of_one_student(tmp_path):
    """A readable file with the assignment's own name counts, else the first by name; notes list the others."""
    own = file_name("01")
    good = ("alice/01-final.ipynb", f"alice/{own}", "alice/01-other.ipynb", "bob/01-b.ipynb", "bob/01-a.ipynb")
    files = dict.fromkeys([*good, "carol/01-again.ipynb"], notebook())
    people = submissions_in(written(tmp_path, {**files, "bob/report.pdf": b"%PDF", f"carol/{own}": b"{"}))
    alice, bob, carol = people["alice"], people["bob"], people["carol"]
    assert (alice.file, bob.file, carol.file) == (own, "01-a.ipynb", "01-again.ipynb") and not carol.problem
    assert sum("was left out" in note for note in alice.notes) == 2
    assert {note.split(" ")[0] for note in bob.notes} == {"01-b.ipynb", "report.pdf"}


@pytest.mark.parametrize("number", ["01", "09"])  # 09: functions that are to be repaired
@pytest.mark.parametrize("has_variants", [False, True])
def test_an_untouched_copy_never_counts_before_work(number, has_variants, tmp_path):
    key = ClassKey("a class") if has_variants else None
    first, *_ = of_notebook(number)
    done = submission(number, key=key, **{first: f"def {first}(*arguments):\n    return 0"})
    untouched, own = submission(number, key=key), file_name(number).removesuffix(".ipynb")
    for n, (blank, with_work) in enumerate([("", " (1)"), (" (1)", ""), ("-2", "-1"), ("", " mine")]):
        names = [f"{own}{blank}.ipynb", f"{own}{with_work}.ipynb"]
        folder = written(tmp_path / f"{n}", {f"a/{names[0]}": untouched, f"a/{names[1]}": done})
        (collected,) = submissions_in(folder, number).values()
        assert collected.file == names[1]
        assert collected.notes == [
            f"{names[0]} is for the same assignment, has nothing written in it, and was left out"
        ]


def test_what_was_begun_is_work(tmp_path):
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
        (collected,) = submissions_in(written(tmp_path / change, files)).values()
        assert collected.file == "x.ipynb", change


def test_depth_and_numbers_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "MAX_FILES", 50)
    written(tmp_path, {f"deep/{'d/' * MAX_DEPTH}01.ipynb": notebook(), "many/01.ipynb": notebook()})
    written(tmp_path, {f"many/{index:02d}.txt": b"" for index in range(60)})
    people = submissions_in(tmp_path)
    assert f"more than {MAX_DEPTH} deep" in people["deep"].problem
    assert has_answer(people["many"]) and any("more than 50 files" in note for note in people["many"].notes)


def test_names_that_would_look_alike_are_told_apart(tmp_path):
    names = ["Bob_77_assignsubmission_file_", "Bob_78_assignsubmission_file_", "Bob (77)", "zoe", "zoe ", "a\nb", "a b"]
    people = submissions_in(written(tmp_path, {f"{name}/01.ipynb": notebook() for name in names}))
    assert list(people) == ["a b", "a b 2", "Bob (77)", "Bob (77) 2", "Bob (78)", "zoe", "zoe 2"]
    assert [people[f"Bob ({number})"].platform_id for number in (77, 78)] == ["77", "78"]


def test_what_a_student_calls_a_file_makes_it_nobody_elses(tmp_path):
    name = "mallory_LATE_666_90002_x_4711_assignsubmission_file_01.ipynb"
    work = submissions_in(written(tmp_path, {name: notebook()}))["mallory"]
    assert (work.platform_id, work.platform) == ("666", "canvas")


def test_the_training_run_is_left_out_with_and_without_the_marks_of_cells(tmp_path):
    bare = json.loads(notebook())
    for cell in bare["cells"]:
        cell["metadata"] = {}
    people = submissions_in(written(tmp_path, {"a.ipynb": notebook(), "b.ipynb": json.dumps(bare).encode()}))
    for work in people.values():
        assert has_answer(work) and not any("finished()" in cell.source for cell in work.cells)


def test_what_a_stranger_writes_for_marks_ends_nothing(tmp_path):
    forged = json.loads(notebook())
    for cell, mark in zip(forged["cells"], ({"role": {}}, {"exercise": ["a"]}, [], 3), strict=False):
        cell["metadata"]["grpo_lab"] = mark
    (work,) = submissions_in(written(tmp_path, {"a.ipynb": json.dumps(forged).encode()})).values()
    assert not work.problem


def test_cells_beat_the_name_of_the_file(tmp_path):
    (work,) = submissions_in(written(tmp_path, {f"alice/{file_name('05')}": notebook()})).values()
    assert work.assignment == "01_policy_gradient"
    assert "it is named like 05_grpo_objective, and graded as 01_policy_gradient" in work.notes[0]


MOODLE = {f"Assignment 2/{name}_assignsubmission_file_/01.ipynb": notebook() for name in ("Ada_1", "Bob_2")}


@pytest.mark.parametrize("above", ["", "term/week 2/"])
def test_moodles_download_below(above, tmp_path):
    unpacked = {f"{above}{name}": content for name, content in MOODLE.items()}
    assert set(submissions_in(written(tmp_path / "a", unpacked))) == {"Ada", "Bob"}
    assert set(submissions_in(written(tmp_path / "b", {f"{above}download.zip": zipped(MOODLE)}))) == {"Ada", "Bob"}


def test_nobody_packs_a_class_into_a_submission(tmp_path):
    """Otherwise one student could hand in work under another's name."""
    written(tmp_path / "a", {"Ada_1_assignsubmission_file_/x.zip": zipped(MOODLE)})
    assert set(submissions_in(tmp_path / "a")) == {"Ada"}
    written(tmp_path / "b", {"eve.zip": zipped(MOODLE), "Bob.ipynb": notebook()})
    assert set(submissions_in(tmp_path / "b")) == {"eve", "Bob"}


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (["ada_1_9001_05_grpo_objective.ipynb", "ada_1_9002_05_grpo_objective-1.ipynb"], "05_grpo_objective-1.ipynb"),
        (["ada_1_9002_05_grpo_objective-2.ipynb", "ada_1_9001_05_grpo_objective-9.ipynb"], "05_grpo_objective-9.ipynb"),
        (["ada/05_grpo_objective.ipynb", "ada/05_grpo_objective (1).ipynb"], "05_grpo_objective (1).ipynb"),
        (["ada/05_grpo_objective(2).ipynb", "ada/05_grpo_objective (1).ipynb"], "05_grpo_objective(2).ipynb"),
    ],
)  # fmt: skip
def test_the_last_version_counts(names, counts, tmp_path):
    written(tmp_path, {name: notebook("05") for name in names})
    (work,) = submissions_in(tmp_path, None).values()
    assert work.file == counts and "is for the same assignment, and was left out" in work.notes[0]
