"""A class for tests: answers of students, and a stand-in for the sandbox that runs notebooks in this process."""

import csv
import io
from pathlib import Path

from grpo_lab.course.exercises import exercises_of_notebook
from grpo_lab.course.grading.grade import grade_class
from grpo_lab.course.grading.messages import UNDEFINED
from grpo_lab.course.grading.sandbox import ExerciseRun, NotebookRun, Sandbox
from grpo_lab.course.stub import imports_of
from tests.course.proof.trials import outcomes
from tests.course.submission_notebooks import solution

POINTS = {name: exercise.points for name, exercise in exercises_of_notebook("01").items()}
RIGHT = {name: "\n".join([*imports_of(e, solution(e)), solution(e)]) for name, e in exercises_of_notebook("01").items()}
WRONG_RLOO = """
def reinforce_loss(seq_logp, weights):
    return (seq_logp * weights.detach()).mean()
"""
OPTIONS = {"output": None, "number": None, "seed": None, "jobs": 1, "time_limit": 30.0, "trust": False}


class InProcess(Sandbox):
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
