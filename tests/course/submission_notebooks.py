"""Submissions for the tests: assignment notebooks in which some stubs are replaced by answers."""

import inspect
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from grpo_lab.course.assignments import ASSIGNMENTS
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.release.notebooks import notebook_text
from grpo_lab.course.stub import solution_body, stub_head

LINUX = sys.platform == "linux"


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
