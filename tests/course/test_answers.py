"""Written answers: found in whichever cell they were typed, and shown."""

import json

import pytest

from grpo_lab.course.grading.collect import find_submissions
from grpo_lab.course.release.notebooks import notebook_text
from tests.course.submitted import file_name, submit

PLACEHOLDER = "*Your answer here. A few sentences are enough.*"
MINE = "They bring nothing."


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
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    _, (one,) = find_submissions(folder)
    return one


def text(source: str, kind: str = "markdown") -> dict:
    return {"cell_type": kind, "metadata": {}, "source": source} | ({"outputs": []} if kind == "code" else {})


PLACES = {
    "below the placeholder": lambda cells, i: cells[i].update(source=f"{PLACEHOLDER}\n\n{MINE}"),
    "a cell behind it": lambda cells, i: cells.insert(i + 1, text(MINE)),
    "a code cell": lambda cells, i: cells.insert(i + 1, text(f"# {MINE}", "code")),
    "under the question": lambda cells, i: cells[i - 1].update(source=[*cells[i - 1]["source"], f"\n\n{MINE}"]),
    "a cell instead of it": lambda cells, i: cells.__setitem__(i, text(MINE)),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_answer_is_found_where_it_was_typed_with_and_without_the_marks_of_cells(place, tmp_path):
    for name, without_marks in (("marked", False), ("bare", True)):
        one = handed_in(tmp_path / name, PLACES[place], without_marks=without_marks)
        assert one.written.strip("# ") == MINE and not one.notes
        assert not any("finished()" in cell.source for cell in one.cells), "no training run"


def test_the_placeholder_is_no_answer(tmp_path):
    for number, left in enumerate((PLACEHOLDER, "*Your answer here.*", "", "**")):
        assert handed_in(tmp_path / str(number), lambda cells, i, left=left: cells[i].update(source=left)).written == ""


def test_what_a_stranger_writes_for_marks_ends_nothing(tmp_path):
    def change(cells, i):
        cells[i]["metadata"]["grpo_lab"] = {"role": ["written"], "question": {"a": 1}}
        cells[0]["metadata"]["grpo_lab"] = {"role": {}, "question": []}

    assert not handed_in(tmp_path, change).problem


def test_cells_beat_the_name_of_the_file(tmp_path):
    submit(tmp_path / "alice" / file_name("05"), "02")
    _, (one,) = find_submissions(tmp_path)
    assert one.assignment == "02_baselines_and_advantages"
    assert "it is named like 05_grpo_objective, and graded as 02_baselines_and_advantages" in one.notes[0]
