"""The assignments as an nbgrader course, for those whose course runs on it already.

    python -m grpo_lab.course export-nbgrader DIR     then, in DIR:
    nbgrader generate_assignment assignment_02        (makes release/, without the solutions and the hidden tests)
    nbgrader autograde assignment_02                  (marks submitted/*/assignment_02)

The tests call `check`, which names the mistake, on the inputs that students see and, hidden, on others. nbgrader runs
the students' code in a kernel with all your rights and without walls: `python -m grpo_lab.course grade` does not.
The cell with the training run is left out, since it would run again for every student.
"""

from pathlib import Path

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.release.notebooks import (
    ANSWER_HERE,
    TITLES,
    cell,
    document,
    head,
    of_notebook,
    refuse_unless_new,
    setup_source,
    task_text,
    written_text,
)
from grpo_lab.course.stub import planted_body, solution_body, solution_imports, stub_head

CONFIG = """\
# nbgrader's settings for this course; https://nbgrader.readthedocs.io lists them all.
c = get_config()
c.CourseDirectory.course_id = "grpo_lab"
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError('yours to write')"}
c.ExecutePreprocessor.timeout = 120
c.Exchange.path_includes_course = True
"""

REPAIR = "    # These lines run once nothing is raised above: repair them.\n"

TEST = """\
verdict = check({name})
display(verdict)
assert worth(verdict), verdict.message
### BEGIN HIDDEN TESTS
fresh = check({name}, seed={seed})
assert worth(verdict, fresh), "not right on inputs that you do not see: " + fresh.message
worth(verdict, fresh)  # nbgrader takes the number for the points
### END HIDDEN TESTS"""


def export_nbgrader(folder: Path, seed: int) -> list[Path]:
    """Write the course folder; returns the notebooks.

    Args:
        folder: new, or empty.
        seed: of the hidden tests.

    Raises:
        FileExistsError: if there is something in the folder.
    """
    refuse_unless_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    written = []
    for number, (stem, _) in TITLES.items():
        path = folder / "source" / f"assignment_{number}" / f"{stem}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(source_notebook(number, seed), encoding="utf-8", newline="\n")
        written.append(path)
    return written


def source_notebook(number: str, seed: int) -> str:
    """The teacher's notebook: solutions between their marks, tests, hidden tests, the written question."""
    exercises, written = of_notebook(number), f"written-{number}"
    needed = [line for e in exercises.values() for line in solution_imports(e)]
    imports = setup_source([*needed, "from grpo_lab.course.checking import worth"])
    cells = [cell("markdown", f"n{number}-head", head(number, exercises)), cell("code", f"n{number}-setup", imports)]
    for position, exercise in enumerate(exercises.values(), 1):
        name, test = exercise.name, TEST.format(name=exercise.name, seed=seed)
        cells += [
            cell("markdown", f"n{number}-{name}-task", "\n\n".join(task_text(position, exercise))),
            cell("code", name, solution(exercise), _mark(name, solution=True)),
            cell("code", f"n{number}-{name}-hint", f'hint("{name}")'),
            cell("code", f"test-{name}", test, _mark(f"test-{name}", locked=True, points=exercise.points)),
        ]
    cells.append(cell("markdown", f"{written}-question", written_text(number)))
    cells.append(cell("markdown", written, ANSWER_HERE, _mark(written, solution=True, points=0)))
    return document(cells)


def solution(exercise: Exercise) -> str:
    """The reference with its body between the marks that nbgrader cuts out; then what is to be repaired."""
    whole = f"{stub_head(exercise)}    ### BEGIN SOLUTION\n{solution_body(exercise)}    ### END SOLUTION"
    return f"{whole}\n{REPAIR}{planted_body(exercise).rstrip()}" if exercise.planted else whole


def _mark(identity: str, *, solution: bool = False, locked: bool = False, points: int | None = None) -> dict:
    """What nbgrader writes into a cell that it knows: an answer, or a test with its points."""
    mark = {"schema_version": 3, "grade_id": identity, "solution": solution, "locked": locked, "task": False}
    return {"nbgrader": mark | {"grade": points is not None} | ({} if points is None else {"points": points})}
