"""The exports, in nbgrader itself and as Gradescope runs one: the reference earns everything, stubs nothing."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from grpo_lab.course.__main__ import main
from grpo_lab.course.release.notebooks import TITLES, of_notebook
from tests.course.right import nb01
from tests.course.submitted import LINUX, file_name, submit

SEED = 4_711


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    pytest.importorskip("nbgrader")
    folder = tmp_path_factory.mktemp("nbgrader") / "course"
    assert main(["export-nbgrader", str(folder), "--seed", str(SEED)]) == 0
    return folder


def nbgrader(course: Path, *arguments: str) -> None:
    own = {name: str(course.parent / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])  # for alembic
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments], cwd=course, env=os.environ | own, capture_output=True,
        encoding="utf-8", errors="replace", timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def scores(course: Path, assignment: str, student: str) -> tuple[float, float]:
    """(points, most points) of the cells that are marked automatically."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        grades = [grade for nb in book.find_submission(assignment, student).notebooks for grade in nb.grades]
        auto = [grade for grade in grades if grade.cell.cell_type == "code"]
        return sum(grade.score for grade in auto), sum(grade.max_score for grade in auto)


def put(path: Path, name: str, source: str) -> None:
    """Write this into the cell of an exercise."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cell = next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == name)
    cell["source"] = source
    path.write_text(json.dumps(notebook), encoding="utf-8")


# Right values; the gradient does not come to the reference as it should not, and not to the logits either.
LENIENT = """\
def kl_exact(logits, ref_logits):
    log_p, log_q = logits.detach().log_softmax(-1), ref_logits.detach().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)
"""


def test_points_are_those_of_the_exercises(course):
    for number, (stem, _) in TITLES.items():
        notebook = json.loads((course / "source" / f"assignment_{number}" / f"{stem}.ipynb").read_text("utf-8"))
        marks = [cell["metadata"]["nbgrader"] for cell in notebook["cells"] if "nbgrader" in cell["metadata"]]
        assert len({mark["grade_id"] for mark in marks}) == len(marks)
        assert sum(mark.get("points", 0) for mark in marks) == sum(e.points for e in of_notebook(number).values())
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                compile("".join(cell["source"]), cell["id"], "exec")


@pytest.mark.slow
def test_nbgrader_marks_the_reference_full_and_stubs_zero_and_part_of_the_points_for_the_numbers(course):
    assignment, name, exercises = "assignment_04", f"{TITLES['04'][0]}.ipynb", of_notebook("04")
    nbgrader(course, "generate_assignment", assignment)
    released = (course / "release" / assignment / name).read_text(encoding="utf-8")
    assert "SOLUTION" not in released and "HIDDEN" not in released and f"seed={SEED}" not in released
    for student, folder in (("reference", "source"), ("stubs", "release"), ("lenient", "release")):
        shutil.copytree(course / folder / assignment, course / "submitted" / student / assignment)
    put(course / "submitted" / "lenient" / assignment / name, "kl_exact", LENIENT)
    nbgrader(course, "autograde", assignment, "--create")
    most = float(sum(exercise.points for exercise in exercises.values()))
    assert scores(course, assignment, "reference") == (most, most)
    assert scores(course, assignment, "stubs") == (0.0, most)
    points = exercises["kl_exact"].points
    assert 0.6 * points <= scores(course, assignment, "lenient")[0] < points


@pytest.fixture(scope="module")
def autograder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradescope") / "autograder"
    assert main(["export-gradescope", str(folder), "--seed", "4711"]) == 0
    return folder


def test_the_zip_has_at_its_top_what_gradescope_looks_for(autograder):
    with zipfile.ZipFile(f"{autograder}.zip") as archive:
        names = set(archive.namelist())
    assert {"setup.sh", "run_autograder", "package/pyproject.toml", "package/grpo_lab/__init__.py"} <= names
    assert not any("__pycache__" in name or name.startswith("package/tests") for name in names)


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="Gradescope's container is Linux")
def test_a_submission_gets_its_results(autograder, tmp_path):
    written = {
        "sequence_logprob": nb01.sequence_by_masked_fill,
        "reinforce_loss": "def reinforce_loss(a, b):\n    1 / 0",
    }
    submit(tmp_path / "submission" / file_name("01"), "01", **written)
    own = {
        "AUTOGRADER_ROOT": str(tmp_path),
        "AUTOGRADER_PYTHON": sys.executable,
        "PYTHONPATH": str(autograder / "package"),
    }
    done = subprocess.run(
        ["bash", str(autograder / "run_autograder")], env=os.environ | own, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    points = {test["name"]: test["score"] for test in results["tests"]}
    assert set(points) == set(of_notebook("01"))
    assert points["sequence_logprob"] == of_notebook("01")["sequence_logprob"].points == results["score"]
    assert sum(test["max_score"] for test in results["tests"]) >= results["score"]
