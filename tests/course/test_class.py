"""A class: marks kept as they come, grading that goes on, a roster, late days, written answers, and one sum everywhere.

The notebooks run in this process here, by a stand-in for the sandbox; what the walls hold is tested elsewhere.
"""

import copy
import csv
import json
import os
import re
from datetime import datetime
from pathlib import Path

import pytest

from grpo_lab.course.exercises import EXERCISES
from grpo_lab.course.grading import classpage, command
from grpo_lab.course.grading import grade as grade_module
from grpo_lab.course.grading.people import Person, who
from grpo_lab.course.grading.report import page_names
from grpo_lab.course.grading.sandbox.trees import TOO_MUCH, remove_tree, size_of_tree
from grpo_lab.course.grading.similar import shapes_of
from grpo_lab.course.grading.submissions import Submission
from tests.course.classroom import POINTS, RIGHT, WRONG_RLOO, InProcess, run, saved, table, write_answer
from tests.course.submitted import LINUX, file_name, submit


def test_one_sum_everywhere(folder, sandbox, capsys):
    assert run(folder) == 0
    assert {name: (row["points"], row["out of"]) for name, row in table(folder).items()} == {
        "alice": ("21", "24"), "bob": ("3", "24"), "carol": ("0", "24"),
    }  # fmt: skip
    assert saved(folder)["out_of"] == 24, "what the head of the assignment says"
    assert {name: one["points"] for name, one in saved(folder)["students"].items()} == {
        "alice": 21,
        "bob": 3,
        "carol": 0,
    }
    pages = folder.parent / "out" / "students"
    assert "<strong>21 of 24 points.</strong>" in (pages / "alice.html").read_text(encoding="utf-8")
    assert "8 of 24 points on average of 3" in capsys.readouterr().out


def test_an_interrupt_keeps_what_was_marked_and_the_rest_is_graded_on(folder, monkeypatch, capsys):
    def interrupt(student):
        if student == "bob":
            raise KeyboardInterrupt

    first = InProcess(interrupt)
    monkeypatch.setattr(grade_module, "Sandbox", first)
    assert run(folder, seed=77) == command.STOPPED
    assert "bob" not in first.ran and "go on with --resume" in capsys.readouterr().out
    assert table(folder)["alice"]["points"] == "21" and "interrupted" in table(folder)["bob"]["remarks"]
    assert saved(folder)["finished"] is False
    second = InProcess()
    monkeypatch.setattr(grade_module, "Sandbox", second)
    assert run(folder, resume=True) == 0
    assert "alice" not in second.ran and "bob" in second.ran
    whole = saved(folder)
    assert whole["seed"] == 77 and whole["finished"] is True
    monkeypatch.setattr(grade_module, "Sandbox", InProcess())
    run(folder, seed=77)
    assert saved(folder) == whole, "as if nothing had happened"


def test_what_changed_since_is_graded_again_on_resume(folder, sandbox):
    run(folder, seed=5)
    submit(folder / "carol" / file_name("02"), best_of_group=RIGHT["best_of_group"])
    run(folder, resume=True)
    assert sorted(sandbox.ran) == ["alice", "bob", "carol", "carol"] and table(folder)["carol"]["points"] == "3"


def test_one_student_again_and_the_difference(folder, sandbox, capsys):
    run(folder, seed=5)
    submit(folder / "bob" / file_name("02"), rloo_advantages=RIGHT["rloo_advantages"])
    submit(folder / "carol" / file_name("02"), best_of_group=RIGHT["best_of_group"])
    capsys.readouterr()
    run(folder, only=["bob"])
    said = capsys.readouterr().out
    assert "bob: rloo_advantages 0 -> 3, best_of_group 3 -> 0" in said
    assert sandbox.ran[3:] == ["bob"] and table(folder)["carol"]["points"] == "0", "carol's new file waits"
    with pytest.raises(ValueError, match="only has 'dave', who handed in nothing"):
        run(folder, only=["dave"])


def test_there_must_be_something_to_go_on_with(folder, sandbox):
    with pytest.raises(ValueError, match="which holds no grading to go on with"):
        run(folder, resume=True)
    run(folder, seed=5)
    with pytest.raises(ValueError, match="seed is 6; the grading that goes on has 5"):
        run(folder, seed=6, resume=True)


def test_a_fault_in_one_notebook_is_that_notebooks(folder, monkeypatch):
    def fail(student):
        if student == "alice":
            raise RecursionError("as deep as you like")

    monkeypatch.setattr(grade_module, "Sandbox", InProcess(fail))
    assert run(folder) == 0
    assert table(folder)["bob"]["points"] == "3" and table(folder)["alice"]["points"] == "0"
    assert "could not be graded (RecursionError: as deep as you like)" in table(folder)["alice"]["remarks"]


def test_text_that_no_file_can_hold(folder, sandbox, capsys):
    """Half of a character, in an answer, in a name of a question, in an error and in a file's name."""
    path = folder / "alice" / file_name("02")
    document = json.loads(path.read_text(encoding="utf-8"))
    for cell in document["cells"]:
        if cell["metadata"].get("grpo_lab", {}).get("role") == "written":
            cell["source"] = "because \ud800 and \udcff"
        if cell["metadata"].get("grpo_lab", {}) == {"exercise": "rloo_advantages"}:
            cell["source"] = "def rloo_advantages(rewards):\n    raise ValueError('\\ud800')"
    path.write_text(json.dumps(document), encoding="utf-8")
    if LINUX:
        os.rename(folder / "carol", folder / os.fsdecode(b"carol\xff"))
    assert run(folder) == 0
    rows = table(folder)
    assert rows["alice"]["points"] == "18" and rows["bob"]["points"] == "3" and len(rows) == 3
    sheet = (folder.parent / "out" / "written" / "02-equal-group.html").read_text(encoding="utf-8")
    assert "because ? and ?" in sheet
    assert len(list((folder.parent / "out" / "students").iterdir())) == 3


def test_roster(folder, sandbox, tmp_path):
    (tmp_path / "r.csv").write_text(
        "\ufeffID;Name;Email;Group\n1;Alice A.;alice@x.org;red\n2;Bob;;blue\n9;Zoe;z@x.org;red\n", encoding="utf-8"
    )
    run(folder, roster=tmp_path / "r.csv")
    rows = table(folder)
    assert (rows["alice"]["id"], rows["alice"]["group"]) == ("1", "red") and rows["bob"]["id"] == "2"
    assert rows["Zoe"]["remarks"] == "handed in nothing" and rows["Zoe"]["points"] == "0"
    assert "not on the roster" in rows["carol"]["remarks"]
    moodle = (folder.parent / "out" / "platforms" / "moodle.csv").read_text(encoding="utf-8").splitlines()
    assert moodle[0] == "Identifier,Full name,Email address,Grade,Maximum Grade,Feedback comments"
    assert ",Alice A.,alice@x.org,21,24," in moodle[1]
    canvas = list(csv.reader((folder.parent / "out" / "platforms" / "canvas.csv").open(encoding="utf-8")))
    assert canvas[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "02_baselines_and_advantages"]
    assert canvas[1] == ["    Points Possible", "", "", "", "", "24"]
    assert canvas[2] == ["Alice A.", "", "", "alice@x.org", "red", "21"]
    gradescope = list(csv.reader((folder.parent / "out" / "platforms" / "gradescope.csv").open(encoding="utf-8")))
    assert gradescope[1] == ["1", "alice@x.org", "Alice A.", "21", "24"]


@pytest.mark.parametrize(
    ("student", "number", "id"),
    [
        ("Ada Lovelace", "", "7"), ("Lovelace, Ada", "", "7"), ("lovelaceada", "", "7"), ("adalovelace", "", "7"),
        ("ada", "", "7"), ("ADA@x.org", "", "7"), ("somebody", "7", "7"), ("7", "", "7"), ("Jose Nunez", "", "8"),
        ("Alan", "", None), ("sam smith", "", None),
    ],
)  # fmt: skip
def test_who_it_is(student, number, id):
    people = [
        Person("7", "Ada Lovelace", "ada@x.org"), Person("8", "José Núñez"), Person("1", "Sam Smith"),
        Person("2", "Sam Smith"),
    ]  # fmt: skip
    found = who(Submission(student, Path("x"), number=number), people)
    assert (found.id if found else None) == id, "two of the same name are nobody, rather than one of them"


@pytest.mark.parametrize(
    ("hours", "days", "points"),
    [(-1, 0, "21"), (0, 0, "21"), (1, 1, "18.9"), (24, 1, "18.9"), (25, 2, "16.8"), (49, 3, "0")],
)
def test_late_days(hours, days, points, folder, sandbox, tmp_path):
    """A tenth for each day begun, for two days."""
    due = datetime(2026, 12, 1, 23, 59)
    handed_in = datetime.fromtimestamp(due.timestamp() + 3600 * hours).isoformat()
    (tmp_path / "t.csv").write_text(f"student,time\nalice,{handed_in}\nbob,{due}\ncarol,{due}\n", encoding="utf-8")
    run(folder, deadline="2026-12-01T23:59", late_days=2, late_cost=0.1, times=tmp_path / "t.csv")
    assert (table(folder)["alice"]["days late"], table(folder)["alice"]["points"]) == (str(days), points)
    assert saved(folder)["students"]["alice"]["points"] == float(points)
    page = (folder.parent / "out" / "students" / "alice.html").read_text(encoding="utf-8")
    assert f"<strong>{points} of 24" in page and ("10% off for each day begun, for 2 days" in page) == (days > 0)


def test_written_answers_from_the_sheet_into_the_totals(folder, sandbox, tmp_path):
    write_answer(folder, "alice", "They bring <b>nothing</b>.")
    run(folder, seed=5)
    out = folder.parent / "out"
    sheet = (out / "written" / "02-equal-group.html").read_text(encoding="utf-8")
    assert "They bring &lt;b&gt;nothing&lt;/b&gt;." in sheet and "advantages are exactly zero" in sheet
    assert table(folder)["alice"]["02-equal-group"] == "" and "not marked yet" in table(folder)["alice"]["remarks"]
    assert table(folder)["carol"]["02-equal-group"] == "0", "who wrote nothing is marked"
    given = (out / "written.csv").read_text(encoding="utf-8")
    assert given.splitlines()[1:] == ["alice,02-equal-group,,"]
    (tmp_path / "given.csv").write_text(given.replace("group,,", "group,2.5,and with a KL term?"), encoding="utf-8")
    run(folder, resume=True, written=tmp_path / "given.csv")
    assert sorted(sandbox.ran) == ["alice", "bob", "carol"], "nothing runs again for it"
    assert table(folder)["alice"]["points"] == "23.5" and saved(folder)["students"]["alice"]["points"] == 23.5
    page = (out / "students" / "alice.html").read_text(encoding="utf-8")
    told = ["In one batch, 60 of 64 prompts", "They bring &lt;b&gt;nothing&lt;/b&gt;.", "and with a KL term?"]
    places = [page.find(text) for text in told]
    assert -1 < places[0] < places[1] < places[2], "the question, the own answer, and what the teacher says about it"
    assert "No written answer was found" in (out / "students" / "carol.html").read_text(encoding="utf-8")
    assert "alice,02-equal-group,2.5,and with a KL term?" in (out / "written.csv").read_text(encoding="utf-8")


def test_overrides_need_a_reason_and_say_it(folder, sandbox, tmp_path):
    path = tmp_path / "o.csv"
    path.write_text("student,exercise,points,reason\nbob,rloo_advantages,2,right but for a sign\n", encoding="utf-8")
    run(folder, overrides=path)
    assert table(folder)["bob"]["rloo_advantages"] == "2" and table(folder)["bob"]["points"] == "5"
    assert "right but for a sign" in table(folder)["bob"]["remarks"]
    assert "right but for a sign" in (folder.parent / "out" / "students" / "bob.html").read_text(encoding="utf-8")
    assert saved(folder)["students"]["bob"]["set by the teacher"]["rloo_advantages"]["points"] == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bob,rloo_advantages,2,", "line 2 gives no reason"),
        ("bob,rloo_advantages,two,x", "line 2 has 'two'; expected a number"),
        ("bob,rloo_advantages,4,x", "4 points for rloo_advantages of 'bob'; expected 0 to 3"),
        ("bob,rloo,2,x", "overrides has 'rloo' for 'bob'; expected one of group_advantages"),
        ("bobby,rloo_advantages,2,x", "overrides has student 'bobby'; expected a name as in grades.csv"),
        ("bob,rloo_advantages,2,x\nbob,rloo_advantages,1,y", "line 3 gives rloo_advantages of 'bob' a second time"),
        ("bob,rloo_advantages,2,x,more", "line 2 has 5 cells; expected 4"),
    ],
)
def test_a_slip_in_a_table_is_refused_before_points_are_lost(line, message, folder, sandbox, tmp_path):
    (tmp_path / "o.csv").write_text(f"student,exercise,points,reason\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        run(folder, overrides=tmp_path / "o.csv")


def test_pseudonyms_leave_no_name_anywhere_and_bring_points_back(folder, sandbox, tmp_path):
    for student in ("alice", "bob", "carol"):
        write_answer(folder, student, "An answer.")
    run(folder, seed=5, pseudonyms=tmp_path / "names.csv")
    out = folder.parent / "out"
    for path in [path for path in out.rglob("*") if path.is_file() and "records" not in path.parts]:
        text = path.name + path.read_text(encoding="utf-8")
        assert not re.search(r"alice|bob\b|carol", text), path
    names = {
        row["student"]: row["pseudonym"] for row in csv.DictReader((tmp_path / "names.csv").open(encoding="utf-8-sig"))
    }
    assert set(names) == {"alice", "bob", "carol"} and table(folder)[names["alice"]]["points"] == "21"
    (tmp_path / "w.csv").write_text(f"student,question,points\n{names['bob']},02-equal-group,3\n", encoding="utf-8")
    run(folder, resume=True, pseudonyms=tmp_path / "names.csv", written=tmp_path / "w.csv")
    assert table(folder)[names["bob"]]["points"] == "6", "the same pseudonym, and the points behind it"
    run(folder, resume=True, written=tmp_path / "w.csv", pseudonyms=tmp_path / "names.csv")
    assert not (out / "platforms").exists()


def test_the_page_of_the_class(folder, sandbox, capsys):
    for student in ("dave", "erin"):
        submit(folder / student / file_name("02"), rloo_advantages=WRONG_RLOO)
    run(folder)
    page = (folder.parent / "out" / "class.html").read_text(encoding="utf-8")
    first = page.index("For the next lecture")
    assert "5 of 5 handed in" in page and "<code>rloo_advantages</code>" in page[first:]
    assert "(3 students, 9 points)" in page[first:]
    assert '<td class="n">1</td><td class="n">3</td><td class="n">1</td>' in page, "rloo: right, not right, not begun"
    assert "most points lost in rloo_advantages" in capsys.readouterr().out


def test_gradescope_takes_the_results_of_one(folder, sandbox, tmp_path):
    for student in ("alice", "carol"):
        for path in (folder / student).iterdir():
            path.unlink()
        (folder / student).rmdir()
    run(folder, results_json=tmp_path / "results.json")
    content = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert content["score"] == 3 == sum(test["score"] for test in content["tests"])
    assert sum(test["max_score"] for test in content["tests"]) == 24
    (wrong,) = [test for test in content["tests"] if test["name"] == "rloo_advantages"]
    assert wrong["status"] == "failed" and "What is expected" not in wrong["output"] and wrong["output"]


def test_marks_survive_their_records(folder, sandbox):
    """A page that is made from records is the page that was made from the marks themselves."""
    run(folder, seed=5)
    out = folder.parent / "out"
    before = {path.name: path.read_text(encoding="utf-8") for path in (out / "students").iterdir()}
    run(folder, resume=True)
    assert {path.name: path.read_text(encoding="utf-8") for path in (out / "students").iterdir()} == before


@pytest.mark.parametrize("damage", ["", "{", '{"of": 3}', "[]"])
def test_a_damaged_record_is_graded_again(damage, folder, sandbox):
    run(folder, seed=5)
    whole = copy.deepcopy(saved(folder))
    for path in (folder.parent / "out" / "records").glob("[0-9a-f]*.json"):
        path.write_text(damage, encoding="utf-8")
    run(folder, resume=True)
    assert saved(folder) == whole and sorted(sandbox.ran) == sorted(["alice", "bob", "carol"] * 2)


def test_the_page_of_a_student_has_a_name_that_every_file_system_takes():
    names = page_names(["\U00020000" * 200, "a/../b", "A/../B", "x" * 400])
    assert len(set(map(str.lower, names))) == 4 and all(len(name.encode()) < 200 for name in names)
    assert not any("/" in name for name in names)


def test_a_year_that_no_calendar_has_is_left_out_of_the_days():
    assert classpage._day(1e13) == "" and classpage._day(0.0) in ("1970-01-01", "1969-12-31")


SHAPE = """
def best_of_group(rewards):
    best = rewards.argmax(-1, keepdim=True)
    kept = torch.zeros_like(rewards)
    return kept.scatter(-1, best, rewards.gather(-1, best))
"""


def test_the_shape_of_an_answer_has_no_names_words_or_layout():
    renamed = (
        SHAPE.replace("best =", "b =")
        .replace(", best", ", b")
        .replace("kept", "out")
        .replace("\n    out", "\n    # x\n    out")
    )
    worded = SHAPE.replace("rewards):\n", 'rewards: "Tensor") -> "Tensor":\n    """My own words."""\n')
    other = SHAPE.replace("argmax", "argmin")
    shape = shapes_of(SHAPE, {"best_of_group"})
    assert shape and shape == shapes_of(renamed, {"best_of_group"}) == shapes_of(worded, {"best_of_group"})
    assert shape != shapes_of(other, {"best_of_group"})
    long = SHAPE.replace("keepdim=True", "keepdim=0x" + "f" * 4000)
    assert long != SHAPE and len(shapes_of(long, {"best_of_group"})["best_of_group"]) < 2 * len(SHAPE)
    assert shapes_of("def best_of_group(rewards):\n    return rewards", {"best_of_group"}) == {}, (
        "too short to say anything"
    )


def test_answers_of_a_rare_shape_are_a_hint_and_the_reference_is_none(folder, sandbox):
    for student in ("dave", "erin"):
        submit(folder / student / file_name("02"), best_of_group="import torch\n" + SHAPE)
    run(folder)
    page = (folder.parent / "out" / "class.html").read_text(encoding="utf-8")
    assert "dave, erin: best_of_group" in page and "and no proof" in page
    assert "alice, " not in page[page.index("Answers of the same shape") : page.index("To look at")]


def test_trees_deeper_than_python_calls_itself_are_removed_and_not_measured(tmp_path):
    if not LINUX:
        pytest.skip("paths without end are Linux's")
    deep = tmp_path / "run"
    deep.mkdir()
    (deep / "small").write_bytes(b"x" * 1000)
    assert size_of_tree(deep) == 1000
    here = os.open(deep, os.O_RDONLY)
    for _ in range(2_500):
        os.mkdir("dd", dir_fd=here)
        below = os.open("dd", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.fchmod(here, 0o000)
    os.close(here)
    (tmp_path / "kept").write_text("of somebody else", encoding="utf-8")
    (deep / "link").symlink_to(tmp_path / "kept")
    assert size_of_tree(deep) == TOO_MUCH
    remove_tree(deep)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_every_exercise_of_the_tests_is_an_exercise():
    assert {name: EXERCISES[name].points for name in POINTS} == POINTS
