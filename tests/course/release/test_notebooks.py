"""The assignment notebooks are what the exercises give, always the same, and run without errors when untouched."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from grpo_lab.course.__main__ import main
from grpo_lab.course.exercises import (
    ASSIGNMENTS,
    ASSIGNMENTS_BY_STEM,
    NAMES,
    Assignment,
    all_exercises,
    exercises_of_notebook,
    find_exercise,
)
from grpo_lab.course.release.notebooks import cells_of, demonstration, notebook_text
from grpo_lab.course.stub import stub_source
from tests.course.classroom import submit
from tests.course.proof.trials import right_answers

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "notebooks" / "assignments"
RUBRIC = json.loads((ROOT / "notebooks" / "assignments" / "rubric.json").read_text(encoding="utf-8"))
EVERY_ASSIGNMENT = pytest.mark.parametrize("assignment", ASSIGNMENTS.values(), ids=ASSIGNMENTS)


@EVERY_ASSIGNMENT
def test_committed_notebook_is_what_the_exercises_give(assignment: Assignment):
    path = FOLDER / f"{assignment.stem}.ipynb"
    assert path.read_text(encoding="utf-8") == notebook_text(assignment), "run `python -m grpo_lab.course build`"
    assert b"\r" not in path.read_bytes()


@pytest.mark.slow
def test_the_rubric_has_every_question_and_is_not_in_what_students_get(tmp_path):
    assert set(RUBRIC) == set(NAMES)
    main(["release", str(tmp_path / "students")])
    assert (tmp_path / "students" / "README.md").is_file()
    sources = [path for kind in ("py", "md", "yaml") for path in (ROOT / "grpo_lab" / "course").rglob(f"*.{kind}")]
    files = [*(tmp_path / "students").rglob("*.*"), *sources]
    handed_out = "".join(path.read_text(encoding="utf-8") for path in files)
    for items in RUBRIC.values():
        assert len(items) >= 2
        assert not [item for item in items if item in handed_out]


@EVERY_ASSIGNMENT
def test_notebook_is_valid_empty_of_outputs_and_without_answers(assignment: Assignment):
    notebook = nbformat.reads(notebook_text(assignment), as_version=4)
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None
            assert_imports_exist(ast.parse(cell.source))
    stubs = {
        c.metadata.grpo_lab.exercise: c.source for c in notebook.cells if list(c.metadata.grpo_lab) == ["exercise"]
    }
    assert list(stubs) == list(assignment.exercise_names)
    for name, source in stubs.items():
        missing = len(re.findall(r"^    raise NotImplementedError", source, re.MULTILINE))
        assert missing == (not find_exercise(name).planted)
        assert not re.search(r"#.*\(\d+\.\d+\)", source), f"{name}: an anchored line of the reference"
    text = "".join(cell.source for cell in notebook.cells)
    assert not any(criterion in text for criterion in RUBRIC[assignment.number])


def test_a_demonstration_binds_all_that_it_names(tmp_path):
    """A linter finds no undefined name in a demonstration below the import cell of its notebook."""
    for assignment in ASSIGNMENTS.values():
        setup = next(cell.source for cell in cells_of(assignment) if cell.metadata == {"role": "setup"})
        source = f"{setup}\n{demonstration(assignment)[1]}\n"
        (tmp_path / f"d{assignment.number}.py").write_text(source, encoding="utf-8")
    lint = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "F,E7",
        "--ignore",
        "F401,F811",
    ]
    done = subprocess.run([*lint, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# learn_to_stop is left out: its task shows no lines of Python, since its figure is at the end of the notebook.
@pytest.mark.parametrize("name", sorted({*exercises_of_notebook("09")} - {"learn_to_stop"}))
def test_example_lines_of_a_task_print_other_output_for_the_stub_than_for_the_answer(name, capsys):
    lines = re.search(r"```python\n(.*?)```", find_exercise(name).task, re.DOTALL)[1]
    right, outputs = vars(sys.modules[find_exercise(name).function.__module__]), []
    for source in ("", stub_source(find_exercise(name))):
        exec(f"{source}\n\n{lines}", dict(right))
        outputs.append(capsys.readouterr().out)
    assert outputs[0] != outputs[1]


def assert_imports_exist(cell: ast.Module) -> None:
    """Execute a cell's imports of grpo_lab, so that a name that has moved is noticed without running the notebook."""
    for node in ast.walk(cell):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("grpo_lab"):
            exec(ast.unparse(node), {})


def test_names_are_those_of_the_lecture_notebooks_and_nothing_is_left_out():
    lectures = {path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    assert ASSIGNMENTS_BY_STEM.keys() - {"08_grpo_on_qwen2"} <= lectures
    assert sum(len(assignment.exercise_names) for assignment in ASSIGNMENTS.values()) == len(all_exercises())
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(ASSIGNMENTS_BY_STEM)


def run(path: Path) -> list:
    """Execute every cell, raise if one fails, and return the outputs of each cell as text."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    return [json.dumps(cell.get("outputs", [])) for cell in notebook.cells]


@pytest.mark.slow
@pytest.mark.parametrize("number", ["01", "04", "05", "09"])
def test_untouched_notebook_runs_from_top_to_bottom(number, tmp_path):
    """The numbers cover each kind of demonstration once."""
    outputs = run(submit(tmp_path / "untouched.ipynb", number))
    assert sum("not done yet" in text for text in outputs) >= len(exercises_of_notebook(number))
    assert any("none yet" in text for text in outputs)


@pytest.mark.slow
def test_solved_notebook_puts_the_functions_to_work(tmp_path):
    answers = {name: right_answers(exercise)[1] for name, exercise in exercises_of_notebook("04").items()}
    outputs = run(submit(tmp_path / "solved.ipynb", "04", **answers))
    assert sum("Well done" in text for text in outputs) == len(answers)
    assert any(f"right so far:  {', '.join(answers)}" in text and "was called" in text for text in outputs)
    points = sum(exercise.points for exercise in exercises_of_notebook("04").values())
    assert f"{points} of {points} points" in outputs[-1]


def test_one_assignment_alone_is_released(tmp_path, capsys):
    assert main(["release", str(tmp_path / "week5"), "--assignment", "05"]) == 0
    assert {path.name for path in (tmp_path / "week5").iterdir()} == {"05_grpo_objective.ipynb", "README.md"}
    assert main(["release", str(tmp_path / "none"), "--assignment", "5"]) == 2
    assert "assignment is '5'; expected one of '01'" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
