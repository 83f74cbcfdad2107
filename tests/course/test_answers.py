"""Written answers: found in whichever cell they were typed, and never 0 without a word."""

import json

import pytest

from grpo_lab.course.grading.submissions import find_submissions
from grpo_lab.course.release import assignments
from grpo_lab.course.release.notebooks import notebook_text
from grpo_lab.course.release.written import WRITTEN
from tests.course.classroom import run, saved, table
from tests.course.submitted import file_name, submit

PLACEHOLDER = "*Your answer here. A few sentences are enough.*"
MINE = "They bring nothing."
(QUESTION,) = WRITTEN["02"]


def handed_in(folder, change, *, without_marks=False):
    """The submission of a student whose notebook `change` has edited: called with its cells and the answer's index."""
    document = json.loads(notebook_text("02"))
    cells = document["cells"]
    change(cells, next(i for i, c in enumerate(cells) if c["metadata"].get("grpo_lab", {}).get("role") == "written"))
    if without_marks:
        document["metadata"] = {}
        for cell in cells:
            cell["metadata"] = {}
    path = folder / "alice" / file_name("02")
    path.parent.mkdir()
    path.write_text(json.dumps(document), encoding="utf-8")
    (one,) = find_submissions(folder, assignments())
    return one


def text(source: str, kind: str = "markdown") -> dict:
    return {"cell_type": kind, "metadata": {}, "source": source} | ({"outputs": []} if kind == "code" else {})


def below(cells, i):
    cells[i]["source"] = f"{PLACEHOLDER}\n\n{MINE}"


def before(cells, i):
    cells[i]["source"] = f"{MINE} {PLACEHOLDER}"


def within(cells, i):
    cells[i]["source"] = f"*Your answer here. {MINE}"


def own_cell(cells, i):
    cells.insert(i + 1, text(MINE))


def code_cell(cells, i):
    cells[i] = text(f"# {MINE}", "code")


def raw_cell(cells, i):
    cells.insert(i + 1, text(MINE, "raw"))


def in_the_question(cells, i):
    cells[i - 1]["source"] = [*cells[i - 1]["source"], f"\n\n{MINE}"]


def instead(cells, i):
    cells[i] = text(MINE)


def split(cells, i):
    """JupyterLab copies the metadata of a cell that is split."""
    cells[i]["source"] = MINE
    cells.insert(i + 1, cells[i] | {"source": PLACEHOLDER})


@pytest.mark.parametrize("without_marks", [False, True])
@pytest.mark.parametrize(
    "change", [below, before, within, own_cell, code_cell, raw_cell, in_the_question, instead, split]
)
def test_an_answer_is_found_where_it_was_typed(change, without_marks, tmp_path):
    one = handed_in(tmp_path, change, without_marks=without_marks)
    assert one.written["02-equal-group"].strip("# ") == MINE and not one.notes


def test_two_cells_are_one_answer(tmp_path):
    def change(cells, i):
        cells[i]["source"] = "First."
        cells.insert(i + 1, text("Second."))

    assert handed_in(tmp_path, change).written == {"02-equal-group": "First.\n\nSecond."}


def test_an_answer_at_another_place_is_shown_and_said(tmp_path):
    one = handed_in(tmp_path, lambda cells, i: cells.append(text(MINE)))
    assert one.written == {"02-equal-group": MINE}
    assert one.notes == [f"02-equal-group: nothing was typed there; taken from cell {len(notebook_cells()) + 1}"]


def notebook_cells() -> list:
    return json.loads(notebook_text("02"))["cells"]


@pytest.mark.parametrize("without_marks", [False, True])
@pytest.mark.parametrize("left", [PLACEHOLDER, "*Your answer here.*", "", "**"])
def test_where_there_is_none_it_is_said(left, without_marks, tmp_path):
    def change(cells, i):
        cells[i]["source"] = left

    one = handed_in(tmp_path, change, without_marks=without_marks)
    assert one.written == {} and one.notes == ["02-equal-group: no written answer was found"]


def test_an_answer_that_is_cut_is_said(tmp_path):
    one = handed_in(tmp_path, lambda cells, i: cells[i].update(source="x" * 30_000))
    assert len(one.written["02-equal-group"]) == 20_000 and "of 30,000 characters the first 20,000" in one.notes[0]


def test_what_a_stranger_writes_for_marks_ends_nothing(tmp_path):
    def change(cells, i):
        cells[i]["metadata"]["grpo_lab"] = {"role": ["written"], "question": {"a": 1}}
        cells[0]["metadata"]["grpo_lab"] = {"role": {}, "question": []}

    assert not handed_in(tmp_path, change).problem


def test_the_sheet_the_table_and_the_remarks_say_the_same(folder, sandbox):
    """alice types below the placeholder, bob in a cell of his own, carol nothing."""
    for student, change in (("alice", below), ("bob", own_cell)):
        path = folder / student / file_name("02")
        document = json.loads(path.read_text(encoding="utf-8"))
        cells = document["cells"]
        change(cells, next(i for i, c in enumerate(cells) if "*Your answer here." in "".join(c["source"])))
        path.write_text(json.dumps(document), encoding="utf-8")
    run(folder, seed=5)
    out = folder.parent / "out"
    sheet = (out / "written" / "02-equal-group.html").read_text(encoding="utf-8")
    assert sheet.count(f"<pre>{MINE}</pre>") == 2 and "Your answer here" not in sheet
    assert set(table(folder, "written.csv")) == {"alice", "bob"}
    rows = table(folder)
    assert [rows[name]["02-equal-group"] for name in ("alice", "bob", "carol")] == ["", "", "0"]
    assert "no written answer was found" in rows["carol"]["remarks"]
    assert "no written answer was found" in " ".join(saved(folder)["students"]["carol"]["remarks"])
    assert "no written answer was found" in (out / "students" / "carol.html").read_text(encoding="utf-8")


def test_cells_beat_the_name_of_the_file(tmp_path):
    submit(tmp_path / "alice" / file_name("05"), "02")
    (one,) = find_submissions(tmp_path, assignments())
    assert one.assignment == "02_baselines_and_advantages"
    assert "it is named like 05_grpo_objective, and graded as 02_baselines_and_advantages" in one.notes[0]
