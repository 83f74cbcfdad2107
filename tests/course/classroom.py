"""A class for tests: three students, and a stand-in for the sandbox that runs their notebooks in this process."""

import csv
import io
import json
from pathlib import Path

from grpo_lab.course.checking.outcome import outcome_of
from grpo_lab.course.grading import command
from grpo_lab.course.grading.sandbox.returned import Result, Returned
from grpo_lab.course.grading.sandbox.run import Sandbox
from tests.course.right import nb02
from tests.course.submitted import file_name

POINTS = {"group_advantages": 6, "rloo_advantages": 3, "best_of_group": 3, "process_advantages": 6, "return_to_go": 3}
RIGHT = {name: nb02.RIGHT[name][0] for name in POINTS}
WRONG_RLOO = """
def rloo_advantages(rewards):
    others = rewards.mean(-1, keepdim=True)
    return rewards - others
"""
OPTIONS = {
    "seed": None, "jobs": 1, "time_limit": None, "memory_limit": None, "output": None, "resume": False, "only": [],
    "roster": None, "deadline": None, "late_days": None, "late_cost": None, "times": None, "written": None,
    "rubric": None, "overrides": None, "pseudonyms": None, "assignment": None, "results_json": None,
}  # fmt: skip


class InProcess(Sandbox):
    """Stands for the sandbox: runs the cells here, and counts. `before` is called with the student first."""

    def __init__(self, before=lambda student: None):
        self.walls, self.ran, self.before = {"limits": ""}, [], before

    def __call__(self, *settings):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def stop(self):
        pass

    def run(self, submission, exercises, seeds, blank):
        self.before(submission.student)
        self.ran.append(submission.student)
        names: dict = {}
        for cell in submission.cells:
            if "def " in cell.source or "import" in cell.source:
                exec(cell.source, names)
        back = Returned()
        for name, exercise in exercises.items():
            seen = {s: [outcome_of(names[name], exercise, i, s) for i in range(len(exercise.cases))] for s in seeds}
            back.results[name] = Result(seen)
        return back


def run(folder: Path, **options) -> int:
    return command.grade_class(folder, **(OPTIONS | {"output": folder.parent / "out"} | options))


def table(folder: Path, name: str = "grades.csv") -> dict[str, dict[str, str]]:
    text = (folder.parent / "out" / name).read_text(encoding="utf-8-sig")
    return {row["student"]: row for row in csv.DictReader(io.StringIO(text))}


def saved(folder: Path) -> dict:
    return json.loads((folder.parent / "out" / "grades.json").read_text(encoding="utf-8"))


def write_answer(folder: Path, student: str, text: str) -> None:
    path = folder / student / file_name("02")
    document = json.loads(path.read_text(encoding="utf-8"))
    for cell in document["cells"]:
        if cell["metadata"].get("grpo_lab", {}).get("role") == "written":
            cell["source"] = text
    path.write_text(json.dumps(document), encoding="utf-8")
