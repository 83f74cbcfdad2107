"""Notebooks from strangers: their encodings, the marks of their cells, and the cells that are left out."""

import json

import pytest

from tests.course.classroom import file_name, has_answer, notebook, submissions_in, write_files


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf" + notebook(), notebook().decode().encode("utf-16")])
def test_notebooks_in_several_encodings_are_read(content, tmp_path):
    assert has_answer(submissions_in(write_files(tmp_path, {"alice.ipynb": content}))["alice"])


def test_the_training_run_is_left_out_with_and_without_the_marks_of_cells(tmp_path):
    bare = json.loads(notebook())
    for cell in bare["cells"]:
        cell["metadata"] = {}
    people = submissions_in(write_files(tmp_path, {"a.ipynb": notebook(), "b.ipynb": json.dumps(bare).encode()}))
    for work in people.values():
        assert has_answer(work)
        assert not any("finished()" in cell.source for cell in work.cells)


def test_forged_cell_metadata_does_not_end_the_grading(tmp_path):
    forged = json.loads(notebook())
    for cell, mark in zip(forged["cells"], ({"role": {}}, {"exercise": ["a"]}, [], 3), strict=False):
        cell["metadata"]["grpo_lab"] = mark
    (work,) = submissions_in(write_files(tmp_path, {"a.ipynb": json.dumps(forged).encode()})).values()
    assert not work.problem


def test_cells_decide_the_assignment_before_the_file_name(tmp_path):
    (work,) = submissions_in(write_files(tmp_path, {f"alice/{file_name('05')}": notebook()})).values()
    assert work.assignment_stem == "01_policy_gradient"
    assert "it is named like 05_grpo_objective, and graded as 01_policy_gradient" in work.notes[0]
