"""A second run on the same results: nothing that a teacher has typed or set is lost, and nothing is missing in silence.

Marks are made up here: a notebook gets all points for what it has begun.
"""

import csv
import io
import json
import re

import pytest

from grpo_lab.course.__main__ import main
from grpo_lab.course.grading import grade as grade_module
from grpo_lab.course.grading.marks import Graded, Mark, not_started_mark
from tests.course.classroom import RIGHT, run, saved, table, write_answer
from tests.course.submitted import file_name, submit

QUESTION = "02-equal-group"
ROSTER = "id,name,email,group\n1,Alice,alice@x.org,red\n2,Bob,bob@x.org,red\n3,Carol,c@x.org,red\n9,Zoe,z@x.org,red\n"


@pytest.fixture(autouse=True)
def _made_up_marks(sandbox, monkeypatch):
    def graded(submission, *rest) -> Graded:
        sandbox.before(submission.student)
        sandbox.ran.append(submission.student)
        opened = grade_module._Opened(submission)
        marks = [
            Mark(exercise, exercise.points, "right", "") if name in opened.attempted else not_started_mark(exercise)
            for name, exercise in opened.exercises.items()
        ]
        return Graded(submission, marks)

    monkeypatch.setattr(grade_module, "_graded", graded)


@pytest.fixture
def out(folder):
    return folder.parent / "out"


def put(path, text: str):
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_are_remembered_until_they_are_taken_away(folder, out, capsys):
    roster = put(folder.parent / "r.csv", ROSTER)
    overrides = put(folder.parent / "o.csv", "student,exercise,points,reason\nbob,rloo_advantages,1,by half\n")
    times = put(folder.parent / "t.csv", "student,time\nalice,2026-12-02T12:00\nbob,2026-12-01\ncarol,2026-12-01\n")
    late = {"deadline": "2026-12-01T23:59", "late_days": 3, "late_cost": 0.1}
    run(folder, roster=roster, overrides=overrides, times=times, **late)
    first = table(folder)
    assert first["alice"]["points"] == "18.9" and first["bob"]["rloo_advantages"] == "1" and "Zoe" in first
    for again in ({"resume": True}, {"only": ["bob"]}, {}):
        capsys.readouterr()
        run(folder, **again)
        assert table(folder) == first, again
        told = capsys.readouterr().out
        assert "note: as before" in told and f"--roster {roster}" in told and "--deadline 2026-12-01T23:59" in told
    run(folder, resume=True, late_cost=0.2)
    assert table(folder)["alice"]["points"] == "16.8", "what is given counts, the rest stays"
    run(folder, resume=True, deadline="none", roster="none")
    rows = table(folder)
    assert rows["alice"]["points"] == "21" and "Zoe" not in rows and rows["bob"]["rloo_advantages"] == "1"
    roster.unlink()
    run(folder, resume=True)
    with pytest.raises(ValueError, match=r"overrides is .*o.csv, which is not there; expected a CSV file"):
        overrides.unlink()
        run(folder, resume=True)


def test_what_lateness_costs_needs_a_deadline(folder):
    with pytest.raises(ValueError, match="late_cost is 0.1, and there is no deadline; expected --deadline with it"):
        run(folder, late_cost=0.1)


def fill_in(out, line: str, other: str = "") -> None:
    """As a spreadsheet does it: semicolons, and a column of one's own."""
    rows = [f"student;question;points;comment{';who' if other else ''}", line + (f";{other}" if other else "")]
    put(out / "written.csv", "\n".join(rows) + "\n")


@pytest.mark.parametrize("again", [{}, {"resume": True}, {"only": ["bob"]}])
def test_what_was_typed_into_the_sheet_counts_and_stays(again, folder, out):
    write_answer(folder, "alice", "They bring nothing.")
    write_answer(folder, "bob", "Much.")
    run(folder)
    fill_in(out, f"alice;{QUESTION};2,5;and with a KL term?", other="M. T.")
    for _ in range(2):
        run(folder, **again)
        assert table(folder)["alice"]["points"] == "23.5"
        rows = list(csv.DictReader(io.StringIO((out / "written.csv").read_text(encoding="utf-8-sig"))))
        kept = {
            "student": "alice",
            "question": QUESTION,
            "points": "2.5",
            "comment": "and with a KL term?",
            "who": "M. T.",
        }
        assert rows[0] == kept and rows[1]["student"] == "bob" and rows[1]["points"] == ""


def test_a_comment_may_come_before_its_points_and_begin_with_a_dash(folder, out):
    write_answer(folder, "alice", "They bring nothing.")
    run(folder)
    fill_in(out, f"alice;{QUESTION};;- ask her")
    for _ in range(2):
        run(folder, resume=True)
    assert "<strong>Your teacher:</strong> - ask her" in (out / "students" / "alice.html").read_text(encoding="utf-8")
    assert "not marked yet" in table(folder)["alice"]["remarks"]
    assert f"alice,{QUESTION},,'- ask her" in (out / "written.csv").read_text(encoding="utf-8")


def test_what_is_typed_while_the_grading_runs_counts(folder, out, sandbox):
    write_answer(folder, "alice", "They bring nothing.")
    run(folder)
    sandbox.before = lambda student: fill_in(out, f"alice;{QUESTION};3;")
    run(folder)
    assert table(folder)["alice"]["points"] == "24"


def test_a_given_file_counts_over_the_sheet_and_says_so(folder, out, capsys):
    write_answer(folder, "alice", "They bring nothing.")
    run(folder)
    fill_in(out, f"alice;{QUESTION};1;short")
    given = put(folder.parent / "w.csv", f"student,question,points\nalice,{QUESTION},2\n")
    run(folder, resume=True, written=given)
    assert re.search(rf"{QUESTION} of alice: 1.0 in .*written.csv becomes 2.0, as in .*w.csv", capsys.readouterr().out)
    assert f"alice,{QUESTION},2,short" in (out / "written.csv").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="written has 4 points for 02-equal-group of 'alice'; expected 0 to 3"):
        put(given, f"student,question,points\nalice,{QUESTION},4\n")
        run(folder, resume=True, written=given)
    assert "alice,02-equal-group,2,short" in (out / "written.csv").read_text(encoding="utf-8"), "nothing was written"


def test_points_for_somebody_who_is_gone_are_refused_rather_than_dropped(folder, out):
    write_answer(folder, "carol", "They bring nothing.")
    run(folder)
    fill_in(out, f"carol;{QUESTION};3;")
    (folder / "carol" / file_name("02")).unlink()
    (folder / "carol").rmdir()
    with pytest.raises(ValueError, match="written has student 'carol'; expected a name as in grades.csv"):
        run(folder, resume=True)
    assert f"carol;{QUESTION};3" in (out / "written.csv").read_text(encoding="utf-8")


def test_overrides_count_and_show_also_where_nothing_could_be_graded(folder, out):
    put(folder / "bob" / file_name("02"), "{")
    lines = "Zoe,group_advantages,2,sick note\nbob,group_advantages,4,read by hand\n"
    overrides = put(folder.parent / "o.csv", f"student,exercise,points,reason\n{lines}")
    written = put(folder.parent / "w.csv", f"student,question,points,comment\nZoe,{QUESTION},3,on paper\n")
    run(folder, roster=put(folder.parent / "r.csv", ROSTER), overrides=overrides, written=written)
    for name, points, total, reason in (("Zoe", 2, 5, "sick note"), ("bob", 4, 4, "read by hand")):
        row, whole = table(folder)[name], saved(folder)["students"][name]
        assert (row["group_advantages"], row["points"]) == (str(points), str(total)) and reason in row["remarks"]
        assert whole["points"] == total and whole["set by the teacher"]["group_advantages"]["reason"] == reason
        page = (out / "students" / f"{name}.html").read_text(encoding="utf-8")
        assert f"<strong>{total} of 24" in page and reason in page
        assert re.search(rf"<code>group_advantages</code></td>.*{points} of 6</td>", page)
        moodle = {r["Full name"].lower(): r for r in platform(out, "moodle.csv")}[name.lower()]
        assert moodle["Grade"] == str(total) and reason in moodle["Feedback comments"]
        assert reason in (out / "class.html").read_text(encoding="utf-8")
    assert "on paper" in (out / "students" / "Zoe.html").read_text(encoding="utf-8")
    assert f"Zoe,{QUESTION},3,on paper" in (out / "written.csv").read_text(encoding="utf-8")


def platform(out, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((out / "platforms" / name).read_text(encoding="utf-8"))))


def test_an_override_without_points_is_refused(folder):
    overrides = put(folder.parent / "o.csv", "student,exercise,points,reason\nbob,rloo_advantages,,sick\n")
    with pytest.raises(ValueError, match="line 2 gives no points; expected a number"):
        run(folder, overrides=overrides)


def test_the_shell_names_what_the_page_of_the_class_names(folder, out, capsys):
    write_answer(folder, "alice", "They bring nothing.")
    write_answer(folder, "bob", "Much.")
    (folder / "dave.pdf").write_bytes(b"%PDF")
    put(folder / "bob" / "notes.txt", "x")
    run(folder, roster=put(folder.parent / "r.csv", ROSTER.replace("2,Bob,bob@x.org,red", "8,Yan,y@x.org,red")))
    told, page = capsys.readouterr().out, (out / "class.html").read_text(encoding="utf-8")
    for line in (
        "handed in nothing (2): Yan, Zoe",
        "not on the roster, or more than one there fits (2): bob, dave",
        f"not marked yet: {QUESTION} (2): alice, bob",
        "notes.txt is no notebook, and was left out",
        "no notebook (.ipynb) (dave.pdf is no notebook)",
    ):
        assert line in told and line in page, line
    assert "2 of 4 handed in, and 2 not found on the roster" in told and "2 of 4 handed in, and 2" in page
    assert "written answers of 2 not marked yet" in told and "written answers of 2 not marked yet" in page


def test_an_interrupted_grading_exports_nothing(folder, out, sandbox, capsys):
    run(folder)
    assert (out / "platforms" / "canvas.csv").exists()
    put(out / "platforms" / "mine.txt", "x")

    def interrupt(student):
        if student == "bob":
            raise KeyboardInterrupt

    sandbox.before = interrupt
    capsys.readouterr()
    run(folder)
    assert [path.name for path in (out / "platforms").iterdir()] == ["mine.txt"]
    assert "no tables for learning platforms, since the grading is not finished" in capsys.readouterr().out
    row = table(folder)["bob"]
    assert row["points"] == row["rloo_advantages"] == "" and saved(folder)["students"]["bob"]["points"] is None
    assert "No points yet" in (out / "students" / "bob.html").read_text(encoding="utf-8")
    assert "was interrupted" in (out / "class.html").read_text(encoding="utf-8")
    sandbox.before = lambda student: None
    run(folder, resume=True)
    assert [row["Total Score"] for row in platform(out, "gradescope.csv")] == ["21", "6", "0"]


def test_canvas_and_moodle_get_their_own_numbers(tmp_path):
    out = tmp_path / "out"
    for name in ("lovelaceada_4711_815000_02.ipynb", "Alan Turing_77_assignsubmission_file_/02.ipynb"):
        submit(tmp_path / "class" / name)
    own = "id,name,email,group,Canvas ID,SIS User ID,moodle id\n1,Ada Lovelace,,,,,\n2,Alan Turing,,,,,\n"
    run(tmp_path / "class", roster=put(tmp_path / "r.csv", own + "9,Zoe,z@x.org,red,900,s9,33\n"))
    canvas = {row["Student"]: (row["ID"], row["SIS User ID"]) for row in platform(out, "canvas.csv")[1:]}
    assert canvas == {"Ada Lovelace": ("4711", ""), "Alan Turing": ("", ""), "Zoe": ("900", "s9")}
    moodle = {row["Full name"]: row["Identifier"] for row in platform(out, "moodle.csv")}
    assert moodle == {"Ada Lovelace": "", "Alan Turing": "Participant 77", "Zoe": "Participant 33"}


def test_the_number_of_a_download_finds_its_student(tmp_path):
    submit(tmp_path / "class" / "garcíalópezmaríajosé_771006_815000_02.ipynb")
    run(tmp_path / "class", roster=put(tmp_path / "r.csv", "id,name,canvas id\n1006,María José,771006\n"))
    (row,) = table(tmp_path / "class").values()
    assert row["id"] == "1006"


def test_pseudonyms_in_a_folder_that_was_used_without(folder, out, capsys):
    write_answer(folder, "bob", "Much.")
    put(folder / "carol" / file_name("02"), "{")
    put(folder / "alice" / "alice-notes.txt", "x")
    names = folder.parent / "names.csv"
    pseudonyms = {"alice": "student-900000", "bob": "student-500000", "carol": "student-100000"}
    put(names, "student,pseudonym\n" + "".join(f"{name},{other}\n" for name, other in pseudonyms.items()))
    run(folder)
    fill_in(out, f"bob;{QUESTION};1;so so")
    capsys.readouterr()
    run(folder, pseudonyms=names)
    told = capsys.readouterr().out
    assert not re.search(r"alice|bob\b|carol", told.replace(str(out), "")), told
    for path in [path for path in out.rglob("*") if path.is_file() and "records" not in path.parts]:
        assert not re.search(r"alice|bob\b|carol", path.name + path.read_text(encoding="utf-8")), path
    assert list(table(folder)) == sorted(pseudonyms.values()), "the order tells nothing"
    assert not (out / "platforms").exists() and "--pseudonyms none shows them" in told
    fill_in(out, f"{pseudonyms['bob']};{QUESTION};2;good")
    run(folder, only=[pseudonyms["bob"]])
    assert table(folder)[pseudonyms["bob"]]["points"] == "8", "remembered, and the sheet is read behind them"
    fill_in(out, f"{pseudonyms['bob']};{QUESTION};3;very good")
    run(folder, resume=True, pseudonyms="none")
    assert table(folder)["bob"]["points"] == "9" and f"bob,{QUESTION},3" in (out / "written.csv").read_text("utf-8")
    assert {path.name for path in (out / "students").iterdir()} == {"alice.html", "bob.html", "carol.html"}
    assert (out / "platforms" / "moodle.csv").exists()


def test_pages_of_those_who_are_gone_go(folder, out):
    run(folder)
    (folder / "carol" / file_name("02")).unlink()
    (folder / "carol").rmdir()
    run(folder)
    assert {path.name for path in (out / "students").iterdir()} == {"alice.html", "bob.html"}


def test_only_takes_an_id_or_an_address_and_tells_of_first_gradings(folder, sandbox, capsys):
    put(folder / "carol" / file_name("02"), "{")
    roster = put(folder.parent / "r.csv", ROSTER)
    run(folder, roster=roster)
    submit(folder / "carol" / file_name("02"), rloo_advantages=RIGHT["rloo_advantages"])
    for wanted in ("2", "BOB@x.org", "Bob"):
        del sandbox.ran[:]
        capsys.readouterr()
        run(folder, only=[wanted])
        assert "bob" in sandbox.ran and "alice" not in sandbox.ran
        told = capsys.readouterr().out
        assert ("carol: no marks before, now 3 points" in told) == (wanted == "2"), "it has marks from then on"
    with pytest.raises(
        ValueError, match="only has '9', who handed in nothing; expected names, ids or e-mail addresses"
    ):
        run(folder, only=["9"])


def test_small_words(folder, out, capsys):
    """What is told of an empty file, a column that nobody reads, a table that is not there."""
    put(folder / "carol" / file_name("02"), "")
    run(folder, roster=put(folder.parent / "r.csv", "ID;E-Mail;Gruppe\n1;alice@x.org;A\n"))
    assert "columns gruppe are not read; known: id, name, email, group" in capsys.readouterr().out
    rows = table(folder)
    assert "the file is empty" in rows["carol"]["remarks"] and rows["alice"]["email"] == "alice@x.org"
    for name in ("grades.csv", "written.csv"):
        assert (out / name).read_bytes().startswith(b"\xef\xbb\xbf"), "Excel needs it"
    assert not (out / "platforms" / "canvas.csv").read_bytes().startswith(b"\xef")
    with pytest.raises(ValueError, match=r"roster is .*nowhere.csv, which is not there; expected a CSV file"):
        run(folder, roster=folder / "nowhere.csv")


def test_the_command_takes_none(folder, capsys):
    assert main(["grade", str(folder), "--roster", str(put(folder.parent / "r.csv", ROSTER))]) == 0
    assert main(["grade", str(folder), "--resume", "--roster", "none"]) == 0
    grades = json.loads((folder.parent / "class-grades" / "grades.json").read_text(encoding="utf-8"))
    assert set(grades["students"]) == {"alice", "bob", "carol"}
    capsys.readouterr()
