"""Write the assignment notebooks from the exercises: `notebooks/assignments/01_policy_gradient.ipynb` and so on.

The notebooks are never edited by hand. Texts, equations and stubs come from the exercises. The training run at the end
of each notebook comes from a text in demonstrations/, in the format of the lessons. The same exercises give the same
bytes on every machine.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.base.files import LESSON_FOLDER, write_atomically
from grpo_lab.base.language import counted, translate_page
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import ASSIGNMENTS, NAMES, Assignment, exercises_of_notebook, find_assignment, texts_of
from grpo_lab.course.stub import imports_of, named_imports, stub_source
from grpo_lab.course.variant import ClassKey, results_of
from grpo_lab.formulas.source import read_equations

ENGLISH = "en"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
DIFFICULTY = {1: "easy", 2: "medium", 3: "hard"}

WRITE = """\
Each exercise has a cell with a function whose last lines are missing. The checks of arguments are given; write the
   lines below them, and run the cell."""
REPAIR = """\
Each exercise has a cell with a function that runs and is wrong; its docstring is right. Run it, measure, and repair it
   as you like. Until it does something else, it is *not done yet*, and earns nothing."""
HOW_IT_WORKS = """\
**How it works**

1. {first}
2. The next cell checks it at once. If something is not right yet, it says what, on an input that shows it.
   It checks the function of the cell as it ran last; it cannot see a change that you have neither run nor saved.
   The points go by what is right: values first, then gradients, then large and extreme inputs. A rule that is wrong on
   some inputs, and right on most, earns up to half.
3. For a hint, delete the first `#` in the cell below and run it; again for a stronger one. Check as often as you like.
4. Leave any exercise out. Keep the names of the functions. Hand in this file.
5. A function may call those of the exercises before it. They are the library's when your work is checked and marked, so
   a mistake costs points only once.
6. The points are for the functions. The questions in words are for you and your teacher."""

CLASS_CELL = """\
# The numbers of your class, which `check` compares with. Run this cell, and leave it as it is.
from grpo_lab.course.variant import class_variant

class_variant('''
{results}
''')"""
ANSWER_HERE = "*Your answer here. A few sentences are enough.*"
# The text of a cell without an answer, in each language.
NOTHING_WRITTEN = {ANSWER_HERE, "*答案写在这里，几句话就够。*"}
IMPORTS = (
    "import matplotlib.pyplot as plt", "import torch",
    *(f"from einops import {name}" for name in ("rearrange", "reduce", "repeat")),
    *(f"from grpo_lab.course import {name}" for name in ("check", "finished", "hint", "progress", "using")),
    *(f"from grpo_lab.teaching.notebook import {name}" for name in ("begin", "fast_or_full")),
    *(f"from grpo_lab.teaching.plots import {name}" for name in ("band", "finish")),
)  # fmt: skip


def build(folder: Path, number: str | None = None, key: ClassKey | None = None, lang: str = ENGLISH) -> list[Path]:
    """Write assignment notebooks into a folder, and return their paths. A file that would not change is not written.

    Args:
        folder: The folder, which is created if it does not exist.
        number: The number of the assignment, such as "05"; None writes all.
        key: The key of a class that has variants.
        lang: The language of the texts, "en" or "zh_CN"; code and docstrings are in English.

    Raises:
        InputError: If there is no such assignment.
    """
    assignments = list(ASSIGNMENTS.values()) if number is None else [find_assignment(number)]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for assignment in assignments:
        path, text = folder / f"{assignment.stem}.ipynb", notebook_text(assignment, key, lang)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
        written.append(path)
    return written


def release(folder: Path, number: str | None = None, key: ClassKey | None = None, lang: str = ENGLISH) -> list[Path]:
    """Write the students' folder, with assignment notebooks and a README; the arguments are those of `build`.

    Raises:
        FileExistsError: If the folder is not empty, so that no work is ever overwritten.
    """
    refuse_unless_new(folder)
    written = build(folder, number, key, lang)
    readme = Path(__file__).with_name("README.md" if lang == ENGLISH else f"README.{lang}.md")
    return [*written, Path(shutil.copyfile(readme, folder / "README.md"))]


def refuse_unless_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"folder is {folder}, not empty; expected a new or empty one, so nothing was written")


@cache
def notebook_text(assignment: Assignment, key: ClassKey | None = None, lang: str = ENGLISH) -> str:
    """Return the text of the notebook file of an assignment; the arguments are those of `build`."""
    translations = key.translations(assignment.number, lang) if key and lang != ENGLISH else {}
    cells: list[dict[str, Any]] = []
    for cell in cells_of(assignment, key, lang):
        source = cell.source
        if cell.kind == "markdown" and lang != ENGLISH:
            source = translate_page(source, f"assignment_{assignment.stem}", lang, translations)
        exercise, role = cell.metadata.get("exercise", "notebook"), cell.metadata.get("role", "stub")
        jupyter_metadata = {"jupyter": {"source_hidden": True}} if role == "variant" else {}
        fields = {
            "cell_type": cell.kind,
            "id": f"a{assignment.number}-{exercise}-{role}"[:64],
            "metadata": {"grpo_lab": cell.metadata} | jupyter_metadata,
            "source": source.splitlines(keepends=True),
        }
        cells.append(fields | ({"execution_count": None, "outputs": []} if cell.kind == "code" else {}))
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}, "grpo_lab": {"assignment": assignment.stem}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


class AssignmentCell(NamedTuple):
    """A cell of an assignment notebook.

    Attributes:
        kind: "code" or "markdown".
        metadata: What the cell is for: its "exercise" and its "role", if it has them. A stub has no role.
    """

    kind: str
    source: str
    metadata: dict[str, str]


def cells_of(assignment: Assignment, key: ClassKey | None = None, lang: str = ENGLISH) -> Iterator[AssignmentCell]:
    """Yield the cells of an assignment; the arguments are those of `build`. Texts are in English."""
    variants = key.exercises(assignment.number) if key else {}
    exercises = assignment.exercises | variants
    import_lines = [line for exercise in exercises.values() for line in imports_of(exercise, stub_source(exercise))]
    yield AssignmentCell("markdown", head_text(assignment, exercises), {"role": "head"})
    yield AssignmentCell("code", setup_source(import_lines), {"role": "setup"})
    if key and variants:
        class_metadata = {"role": "variant", "class": key.fingerprint(assignment.number)}
        yield AssignmentCell("code", CLASS_CELL.format(results=results_of(variants, lang)), class_metadata)
    for position, exercise in enumerate(exercises.values(), 1):
        yield from exercise_cells(position, exercise)
    text, code = demonstration(assignment)
    yield AssignmentCell("markdown", f"## See your functions at work\n\n{text}", {"role": "demo-text"})
    yield AssignmentCell("code", code, {"role": "demo"})
    question = f"## In your own words\n\n{written_question(assignment)}"
    yield AssignmentCell("markdown", question, {"role": "question"})
    yield AssignmentCell("markdown", ANSWER_HERE, {"role": "written"})
    yield AssignmentCell("markdown", "## How far are you?", {"role": "progress-text"})
    yield AssignmentCell("code", "progress()", {"role": "progress"})


@cache
def demonstration(assignment: Assignment) -> tuple[str, str]:
    """Return the text and the code, from demonstrations/, of a training run with a student's right functions."""
    path = Path(__file__).parent / "demonstrations" / f"{assignment.stem}.md"
    text, code = path.read_text(encoding="utf-8").split("\n\n```{code-cell} ipython3\n")
    return text, code.removesuffix("\n```\n")


def written_question(assignment: Assignment) -> str:
    """Return the question in words of an assignment; notebooks/assignments/rubric.json says what a full answer has."""
    return texts_of(assignment.number)["in your own words"]


def head_text(assignment: Assignment, exercises: dict[str, Exercise]) -> str:
    """Return the first cell of an assignment: title, time and points, what is needed, and how it works."""
    is_repair = any(exercise.planted for exercise in exercises.values())
    points = sum(exercise.points for exercise in exercises.values())
    hours = _duration(sum(exercise.minutes for exercise in exercises.values()))
    return (
        f"# Assignment {assignment.number} · {assignment.title}\n\n"
        f"{len(exercises)} functions to {'repair' if is_repair else 'write'}, "
        f"about {hours}, {counted(points, 'point')}.\n\n"
        f"**What you need:** [notebook {assignment.number}](../{assignment.stem}.ipynb), read; "
        "this package, installed; no GPU.\n\n"
        f"{HOW_IT_WORKS.format(first=REPAIR if is_repair else WRITE)}"
    )


def setup_source(import_lines: Iterable[str]) -> str:
    """Return the import cell: the imports of every assignment and these lines, with one line for each module."""
    plain_imports: set[str] = set()
    names_by_module: dict[str, set[str]] = {}
    for line in (*IMPORTS, *import_lines):
        if line.startswith("from "):
            module, name = line.removeprefix("from ").split(" import ")
            names_by_module.setdefault(module, set()).add(name)
        else:
            plain_imports.add(line)
    from_imports = [
        f"from {module} import {', '.join(sorted(names, key=str.lower))}"
        for module, names in sorted(names_by_module.items())
    ]
    from_grpo_lab = [line for line in from_imports if line.startswith("from grpo_lab")]
    from_others = [line for line in from_imports if line not in from_grpo_lab]
    return "\n".join([*sorted(plain_imports), *from_others, "", *from_grpo_lab, "", "begin(seed=0)"])


def exercise_cells(position: int, exercise: Exercise) -> Iterator[AssignmentCell]:
    """Yield the cells of an exercise, as `cells_of` does: task, stub, check and hint."""
    name, metadata = exercise.name, {"exercise": exercise.name}
    yield AssignmentCell("markdown", "\n\n".join(task_paragraphs(position, exercise)), metadata | {"role": "task"})
    yield AssignmentCell("code", _stub_with_imports(exercise), metadata)
    yield AssignmentCell("code", f"check({name})", metadata | {"role": "check"})
    yield AssignmentCell("code", f'# hint("{name}")', metadata | {"role": "hint"})


def _stub_with_imports(exercise: Exercise) -> str:
    """Return the stub, preceded by imports of the package's functions that docstring and task mention.

    Functions that the student writes in this notebook, and those that the import cell imports, are left out.
    """
    source, written_here = stub_source(exercise), exercises_of_notebook(exercise.notebook)
    in_import_cell = imports_of(exercise, source)
    mentioned = [line for line in named_imports(exercise) if line not in in_import_cell]
    lines = [line for line in mentioned if line.split()[-1] not in written_here]
    return "\n".join([*lines, "", "", source.strip()] if lines else [source.strip()])


def task_paragraphs(position: int, exercise: Exercise) -> list[str]:
    """Return the paragraphs of a task: the heading, points and time, the task itself, and the equations."""
    points, difficulty = counted(exercise.points, "point"), DIFFICULTY[exercise.difficulty]
    section = lesson_sections().get(exercise.name, f"{ASSIGNMENTS[exercise.notebook].stem}.ipynb")
    about = f"*{points} · about {exercise.minutes} minutes · {difficulty} · [back to the lesson](../{section})*"
    equations = [f"$$\n{e.latex} \\tag{{{e.tag}}}\n$$" for e in read_equations(exercise.function)]
    return [f"## {position}. `{exercise.name}`", about, exercise.task, *equations]


@cache
def lesson_sections() -> dict[str, str]:
    """Return the section of a lesson that asks for each function, as file name and JupyterLab's anchor."""
    section_of: dict[str, str] = {}
    for path in sorted(LESSON_FOLDER.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        anchor = ""
        for line in "\n".join(texts).splitlines():
            heading = line.lstrip("# ")
            if line.startswith("#") and heading != "Symbols":  # no function is asked for below the table of symbols
                anchor = heading.replace(" ", "-")
            request = line.partition("**Now ")[2]
            notebook = re.search(r"assignments/(\w+?)_", request) or re.match(r"(\w+?)_", path.name)
            for name in re.findall(r"`(\w+)`", request):
                if notebook and name in NAMES.get(notebook[1], ()):
                    section_of.setdefault(name, f"{path.name}#{anchor}")
    return section_of


def _duration(minutes: int) -> str:
    return f"{5 * round(minutes / 5)} minutes" if minutes < 75 else f"{round(minutes / 30) / 2:g} hours"
