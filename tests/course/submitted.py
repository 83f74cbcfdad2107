"""Submissions made up for the tests: an assignment in which some stubs have been replaced."""

import inspect
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.release.notebooks import TITLES, notebook_text
from grpo_lab.course.stub import solution_body, stub_head

LINUX = sys.platform == "linux"


def submit(path: Path, number: str = "01", cells: tuple[str, ...] = (), key=None, **written: Callable | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(submission(number, cells, key, **written))
    return path


def submission(number: str = "01", cells: tuple[str, ...] = (), key=None, **written: Callable | str) -> bytes:
    """The notebook of an assignment with these functions in the place of stubs, and these cells in front.

    key: a `ClassKey`, for a notebook with its variants.
    """
    notebook = json.loads(notebook_text(number, key))
    for cell in notebook["cells"]:
        mark = cell["metadata"].get("grpo_lab", {})
        if set(mark) == {"exercise"} and mark["exercise"] in written:
            cell["source"] = source_of(mark["exercise"], written.pop(mark["exercise"]))
    assert not written, f"no stub for {', '.join(written)}"
    blank = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    extra = [blank | {"id": f"x{i}", "source": source} for i, source in enumerate(cells)]
    notebook["cells"][2:2] = extra
    return json.dumps(notebook).encode()


def solution(exercise: Exercise) -> str:
    """The stub with the lines that it lacks."""
    return stub_head(exercise) + solution_body(exercise)


def file_name(number: str) -> str:
    return f"{TITLES[number][0]}.ipynb"


def source_of(name: str, function: Callable | str) -> str:
    """The text of the cell; of a function, its whole module, so that its imports and helpers are there too."""
    if isinstance(function, str):
        return textwrap.dedent(function)
    module, answer = inspect.getmodule(function), function.__name__
    return f'{inspect.getsource(module)}\n\n{name} = {answer}\n{name}.__name__ = "{name}"\n'
