"""Downloads as they come: archives and folders around a class, who it is, when it came, which version counts."""

import os
import time
from datetime import datetime
from pathlib import Path

import pytest

from grpo_lab.course.grading.files import archived
from grpo_lab.course.grading.people import Person, who
from grpo_lab.course.grading.submissions import Submission, find_submissions
from grpo_lab.course.release import assignments
from tests.course.classroom import RIGHT, run, saved, table
from tests.course.submitted import file_name, submit
from tests.course.test_collecting import found, notebook, zipped

ONE = """\
submission_{key}:
  :submitters:
  - :name: {name}
    :sid: '{sid}'
    :email: {email}
  :created_at: {created} 20:00:00.000000000 Z
  :score: 0.0
  :results: {{}}
  :history:
  - :id: 1
    :created_at: 2020-01-01 00:00:00.000000000 Z
"""
SMITHS = [(301, "Anna Schmidt", "1001"), (305, "Noah Smith", "1011"), (306, "Noah Smith", "1012")]
EXPORT = {
    f"assignment_7_export/submission_{key}/{file_name('02')}": notebook(answer="An answer.") for key, *_ in SMITHS
} | {
    "assignment_7_export/submission_metadata.yml": "---\n".join(
        ["", *(ONE.format(key=k, name=n, sid=s, email=f"s{s}@x.org", created="2026-11-10") for k, n, s in SMITHS)]
    ).encode()
}
MOODLE = {f"Assignment 2/{name}_assignsubmission_file_/02.ipynb": notebook() for name in ("Ada_1", "Bob_2")}


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("how", ["the archive", "in a folder", "unpacked", "inner folder"])
def test_gradescopes_export(how, tmp_path):
    folder = tmp_path / "in"
    if how in ("the archive", "in a folder"):
        written(folder, {"export.zip": zipped(EXPORT)})
    else:
        written(folder, EXPORT)
    place = {"the archive": folder / "export.zip", "inner folder": folder / "assignment_7_export"}.get(how, folder)
    people = found(place)
    assert {name: [one.number for one in ones] for name, ones in people.items()} == {
        "Anna Schmidt": ["1001"], "Noah Smith": ["1011", "1012"],
    }  # fmt: skip
    (anna,) = people["Anna Schmidt"]
    assert anna.email == "s1001@x.org" and anna.dated
    assert anna.modified == datetime.fromisoformat("2026-11-10T20:00:00+00:00").timestamp()


@pytest.mark.parametrize("around", ["", "week 2/", "term/week 2/"])
def test_moodles_download_below(around, tmp_path):
    assert set(found(written(tmp_path / "a", {f"{around}{name}": content for name, content in MOODLE.items()}))) == {
        "Ada", "Bob",
    }  # fmt: skip
    assert set(found(written(tmp_path / "b", {f"{around}download.zip": zipped(MOODLE)}))) == {"Ada", "Bob"}


def test_canvas_downloads_of_two_groups(tmp_path):
    for group, student in (("A", "ada"), ("B", "bob")):
        files = {f"{student}{i}_{i}_900{i}_02.ipynb": notebook() for i in (1, 2)}
        written(tmp_path, {f"group {group}.zip": zipped(files)})
    assert set(found(tmp_path)) == {"ada1", "ada2", "bob1", "bob2"}


def test_nobody_packs_a_class_into_a_submission(tmp_path):
    """Else one student could hand in for another."""
    written(tmp_path / "a", {"Ada_1_assignsubmission_file_/x.zip": zipped(MOODLE)})
    assert set(found(tmp_path / "a")) == {"Ada"}
    written(tmp_path / "b", {"eve.zip": zipped(MOODLE), "Bob.ipynb": notebook()})
    people = found(tmp_path / "b")
    assert set(people) == {"eve", "Bob"} and "it looks like the download of a class" in people["eve"][0].problem


def test_a_class_that_looks_like_one_student_is_told(folder, sandbox, capsys):
    files = {f"{name}/02.ipynb": notebook(answer="An answer.") for name in ("ada", "bob", "cy")}
    written(folder.parent / "outer", {"class.zip": zipped(files)})
    run(folder.parent / "outer")
    assert "warning: only one student was found, of whom 2 notebooks" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone cannot be changed here")
def test_an_archives_times_are_local(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        written(tmp_path, {"x.zip": zipped({"02.ipynb": notebook()})})
        (file,) = archived(tmp_path / "x.zip", ("x.zip",))
        assert abs(file.modified - time.time()) < 60
    finally:
        monkeypatch.undo()
        time.tzset()


def test_two_of_one_name_by_id_and_address(folder, sandbox):
    """Gradescope's list tells them apart, and so does JSON where neither has handed in."""
    export = written(folder.parent / "gradescope", EXPORT)
    lines = ["1001,Anna Schmidt,", "1011,Noah Smith,", "x,Noah Smith,S1012@x.org", "8,Jo Li,", "9,Jo Li,"]
    roster = folder.parent / "roster.csv"
    roster.write_text("\n".join(["id,name,email", *lines]), encoding="utf-8")
    run(export, roster=roster)
    rows = saved(export)["students"]
    assert {name: one["id"] for name, one in rows.items()} == {
        "Anna Schmidt": "1001", "Noah Smith (1011)": "1011", "Noah Smith (1012)": "x",
        "Jo Li (8)": "8", "Jo Li (9)": "9",
    }  # fmt: skip
    assert len(table(export)) == 5


@pytest.mark.parametrize("joined", ["garcíalópezmaríajosé", "lópezmaríajoségarcía"])
def test_a_surname_of_several_words(joined):
    people = [Person("1", "María José García López"), Person("2", "Ana García")]
    assert who(Submission(joined, Path("x"), number="77"), people) is people[0]


def test_one_person_twice_is_said(folder, sandbox):
    submit(folder / "1" / file_name("02"), **RIGHT)
    (folder.parent / "r.csv").write_text("id,name\n1,alice\n2,bob\n3,carol\n", encoding="utf-8")
    run(folder, roster=folder.parent / "r.csv")
    assert "id 1 of the roster has handed in as 1, too" in table(folder)["alice"]["remarks"]


def dated(folder: Path, when: str) -> None:
    for path in folder.rglob("*.ipynb"):
        os.utime(path, (datetime.fromisoformat(when).timestamp(),) * 2)


def test_everybody_late_by_the_files_own_dates_is_doubted(folder, sandbox, capsys):
    dated(folder, "2026-11-22T12:00")
    run(folder, seed=5, deadline="2026-11-10T23:59")
    doubt = "by the files' own dates, which may be those of a download, all 3 of them are late"
    assert f"warning: {doubt}" in capsys.readouterr().out and doubt in saved(folder)["doubts"][0]
    page = (folder.parent / "out" / "class.html").read_text(encoding="utf-8")
    assert "which may be those of a download, all 3" in page
    assert "late by the file's own date" in table(folder)["alice"]["remarks"]
    dated(folder / "bob", "2026-11-09T12:00")
    run(folder, seed=5, deadline="2026-11-10T23:59")
    assert saved(folder)["doubts"] == []


def test_gradescopes_times_count_and_are_not_doubted(folder, sandbox):
    export = written(folder.parent / "gradescope", EXPORT)
    run(export, seed=5, deadline="2026-11-10T23:59")
    assert {row["days late"] for row in table(export).values()} == {"0"}
    run(export, seed=5, deadline="2026-11-09T23:59")
    assert {row["days late"] for row in table(export).values()} == {"1"} and saved(export)["doubts"] == []


def test_canvas_marks_and_dates_that_contradict_are_doubted(folder, sandbox):
    canvas = folder.parent / "canvas"
    for name in ("ada_LATE_1_9001", "bob_2_9002", "cy_3_9003"):
        written(canvas, {f"{name}_02.ipynb": notebook()})
    dated(canvas, "2026-11-22T12:00")
    run(canvas, deadline="2026-11-10T23:59")
    assert "Canvas marks 1 of 3 as late, the files' own dates 3; --times gives" in saved(canvas)["doubts"][-1]
    assert "marked as late by the platform" in table(canvas)["ada"]["remarks"]
    assert "late by the file's own date, and not by Canvas" in table(canvas)["bob"]["remarks"]


def test_times_of_nobody_are_refused_and_of_some_are_said(folder, sandbox):
    path = folder.parent / "t.csv"
    path.write_text("student,time\nalcie,2026-11-10\n", encoding="utf-8")
    with pytest.raises(ValueError, match="times has student 'alcie'; expected a name as in grades.csv"):
        run(folder, times=path)
    path.write_text("student,time\nalice,2026-11-10\n", encoding="utf-8")
    run(folder, times=path, deadline="2036-11-10T23:59")
    assert saved(folder)["doubts"][0].startswith("times has no line for 2 students: the files' own dates count")


def test_one_stray_notebook_changes_nobodys_sum(folder, sandbox, capsys):
    submit(folder / "zoe" / file_name("01"), "01")
    submit(folder / "bob" / file_name("01"), "01")
    run(folder)
    assert {row["out of"] for row in table(folder).values()} == {"24"}
    assert table(folder)["zoe"]["points"] == "0"
    assert "it is for 01_policy_gradient, which is not graded here" in table(folder)["zoe"]["remarks"]
    assert "01_policy_gradient, which is not graded here, and was left out" in table(folder)["bob"]["remarks"]
    assert "warning: 2 students handed in another assignment than 02" in capsys.readouterr().out


def test_the_assignment_can_be_said(folder, sandbox):
    submit(folder / "alice" / file_name("01"), "01")
    run(folder, assignment="01,02")
    both = table(folder)
    assert both["alice"]["out of"] == both["bob"]["out of"] != "24"
    assert "not handed in: 01_policy_gradient" in both["bob"]["remarks"]
    assert "2 students did not hand in all of 01, 02, which make one sum" in saved(folder)["doubts"][0]
    run(folder, assignment="05")
    assert set(table(folder)["bob"]) >= {"policy_loss"} and table(folder)["bob"]["points"] == "0"
    with pytest.raises(ValueError, match="assignment is '9'; expected one of 01, 02"):
        run(folder, assignment="02,9")


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (["ada_1_9001_05_grpo_objective.ipynb", "ada_1_9002_05_grpo_objective-1.ipynb"], "05_grpo_objective-1.ipynb"),
        (["ada_1_9002_05_grpo_objective-2.ipynb", "ada_1_9001_05_grpo_objective-9.ipynb"], "05_grpo_objective-9.ipynb"),
        (["ada_1_9001_work.ipynb", "ada_1_9002_play.ipynb"], "play.ipynb"),
        (["ada/05_grpo_objective.ipynb", "ada/05_grpo_objective (1).ipynb"], "05_grpo_objective (1).ipynb"),
        (["ada/05_grpo_objective(2).ipynb", "ada/05_grpo_objective (1).ipynb"], "05_grpo_objective(2).ipynb"),
        (["ada/05_grpo_objective.ipynb", "ada/a_final (7).ipynb"], "05_grpo_objective.ipynb"),
    ],
)  # fmt: skip
def test_the_last_version_counts(names, counts, tmp_path):
    written(tmp_path, {name: notebook("05", answer="An answer.") for name in names})
    (one,) = find_submissions(tmp_path, assignments())
    assert one.file == counts and "is for the same assignment" in one.notes[0]


def test_a_later_date_is_no_rule_and_is_said(tmp_path):
    for name, day in ((file_name("02"), 10), ("02-new.ipynb", 12)):
        written(tmp_path, {f"ada/{name}": notebook(answer="An answer.")})
        os.utime(tmp_path / "ada" / name, (day * 86_400,) * 2)
    (one,) = find_submissions(tmp_path, assignments())
    assert one.notes == ["02-new.ipynb is for the same assignment, has the later date, and was left out"]
