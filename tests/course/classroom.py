"""A class for tests: notebooks and files of students, and a stand-in for the sandbox that runs them in this process."""

import csv
import inspect
import io
import json
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import ASSIGNMENTS, exercises_of_notebook
from grpo_lab.course.grading.collect import find_submissions
from grpo_lab.course.grading.grade import grade_class
from grpo_lab.course.grading.messages import UNDEFINED
from grpo_lab.course.grading.run_notebook import ExerciseRun, NotebookRun, NotebookRunner
from grpo_lab.course.grading.submission import Submission
from grpo_lab.course.release.notebooks import notebook_text
from grpo_lab.course.stub import imports_of, solution_body, stub_head
from tests.course.proof.trials import outcomes


def submit(path: Path, number: str = "01", cells: tuple[str, ...] = (), key=None, **written: Callable | str) -> Path:
    """Write a submission to a file and return its path; the other arguments are those of `submission`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(submission(number, cells, key, **written))
    return path


def submission(number: str = "01", cells: tuple[str, ...] = (), key=None, **written: Callable | str) -> bytes:
    """Return the notebook of an assignment in which students have written functions and added cells.

    Args:
        number: The number of the assignment.
        cells: The sources of cells that are added after the import cell.
        key: The `ClassKey` of a notebook with variants.
        written: The functions, or their sources, that replace the stubs of these names.
    """
    notebook = json.loads(notebook_text(ASSIGNMENTS[number], key))
    for cell in notebook["cells"]:
        metadata = cell["metadata"].get("grpo_lab", {})
        is_stub = set(metadata) == {"exercise"}
        if is_stub and metadata["exercise"] in written:
            cell["source"] = answer_cell_source(metadata["exercise"], written.pop(metadata["exercise"]))
    assert not written, f"no stub for {', '.join(written)}"
    empty_cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    notebook["cells"][2:2] = [empty_cell | {"id": f"x{i}", "source": source} for i, source in enumerate(cells)]
    return json.dumps(notebook).encode()


def solution(exercise: Exercise) -> str:
    """Return the source of an exercise's function: the stub with the lines that it lacks."""
    return stub_head(exercise) + solution_body(exercise)


def file_name(number: str) -> str:
    return f"{ASSIGNMENTS[number].stem}.ipynb"


def answer_cell_source(name: str, function: Callable | str) -> str:
    """Return the source of the cell that defines an answer under the name of its exercise.

    If the answer is a function, the cell has its whole module, with the imports and helpers that it needs.
    """
    if isinstance(function, str):
        return textwrap.dedent(function)
    module, answer = inspect.getmodule(function), function.__name__
    return f'{inspect.getsource(module)}\n\n{name} = {answer}\n{name}.__name__ = "{name}"\n'


POINTS = {name: exercise.points for name, exercise in exercises_of_notebook("01").items()}
RIGHT = {name: "\n".join([*imports_of(e, solution(e)), solution(e)]) for name, e in exercises_of_notebook("01").items()}
WRONG_RLOO = """
def reinforce_loss(seq_logp, weights):
    return (seq_logp * weights.detach()).mean()
"""
RLOO = "def reinforce_loss(seq_logp, weights):\n    return seq_logp"
OPTIONS = {"output": None, "number": None, "seed": None, "jobs": 1, "time_limit": 30.0, "trust": False}


class InProcess(NotebookRunner):
    """A stand-in for the sandbox that runs the cells in this process.

    before_run: A function that is called with the text of the cells before they run; a test may replace it.
    """

    def __init__(self):
        self.before_run = lambda cells: None

    def __call__(self, exercises, isolation, *settings):
        self.exercises, self.isolation = exercises, isolation
        return self

    def __exit__(self, *exception):
        pass

    def stop(self):
        pass

    def run(self, cells, seeds):
        self.before_run("".join(cell.source for cell in cells))
        namespace: dict = {}
        for cell in cells:
            if "def " in cell.source or "import" in cell.source:
                exec(cell.source, namespace)
        runs = {}
        for name, exercise in self.exercises.items():
            if name in namespace:
                runs[name] = ExerciseRun({seed: outcomes(exercise, namespace[name], seed) for seed in seeds})
            else:
                runs[name] = ExerciseRun(problem=UNDEFINED)
        return NotebookRun(runs)


def run(folder: Path, **options) -> int:
    return grade_class(folder, **(OPTIONS | {"output": folder.parent / "out"} | options))


def table(folder: Path, name: str = "grades.csv") -> list[dict[str, str]]:
    text = (folder.parent / "out" / name).read_text(encoding="utf-8-sig")
    return list(csv.DictReader(io.StringIO(text)))


def rows(folder: Path) -> dict[str, dict[str, str]]:
    return {row["student"]: row for row in table(folder)}


def page(folder: Path, name: str) -> str:
    return (folder.parent / "out" / name).read_text(encoding="utf-8")


LINUX = sys.platform == "linux"


def notebook(number: str = "01") -> bytes:
    """Return the notebook of an assignment; in assignment 01 one function is answered, by `RLOO`."""
    return submission(number, **{"reinforce_loss": RLOO} if number == "01" else {})


def submissions_in(folder: Path, number: str | None = "01") -> dict[str, Submission]:
    """Return the submissions in a folder by student."""
    return {work.student: work for work in find_submissions(folder, number)[1]}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a folder, and return the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def has_answer(work: Submission) -> bool:
    """Return True if a submission has the answer `RLOO`."""
    return any(cell.source == RLOO for cell in work.cells)


def zipped(files: dict[str, bytes]) -> bytes:
    """Return a zip archive of these files."""
    archive_file = io.BytesIO()
    with zipfile.ZipFile(archive_file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return archive_file.getvalue()
