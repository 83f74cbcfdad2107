"""Submissions made up for the tests: an assignment in which some stubs have been replaced."""

import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from grpo_lab.course.release.notebooks import TITLES, notebook_text

LINUX = sys.platform == "linux"


def submit(path: Path, number: str = "02", cells: tuple[str, ...] = (), **written: Callable | str) -> Path:
    """Write the notebook of an assignment with these functions in the place of stubs, and these cells in front."""
    notebook = json.loads(notebook_text(number))
    for cell in notebook["cells"]:
        mark = cell["metadata"].get("grpo_lab", {})
        if set(mark) == {"exercise"} and mark["exercise"] in written:
            cell["source"] = source_of(mark["exercise"], written.pop(mark["exercise"]))
    assert not written, f"no stub for {', '.join(written)}"
    blank = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    extra = [blank | {"id": f"x{i}", "source": source} for i, source in enumerate(cells)]
    notebook["cells"][2:2] = extra
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def file_name(number: str) -> str:
    return f"{TITLES[number][0]}.ipynb"


def source_of(name: str, function: Callable | str) -> str:
    """The text of the cell; of a function, its whole module, so that its imports and helpers are there too."""
    if isinstance(function, str):
        return textwrap.dedent(function)
    module, answer = inspect.getmodule(function), function.__name__
    return f'{inspect.getsource(module)}\n\n{name} = {answer}\n{name}.__name__ = "{name}"\n'


def hand_in_what_is_no_notebook(folder: Path, honest: Path) -> None:
    (folder / "broken.ipynb").write_text("{not json", encoding="utf-8")
    (folder / "other.ipynb").write_text('{"cells": 3}', encoding="utf-8")
    (folder / "deep.ipynb").write_text("[" * 200_000, encoding="utf-8")
    (folder / "empty").mkdir()
    with open(folder / "huge.ipynb", "wb") as file:
        file.truncate(40_000_000)
    if LINUX:
        (folder / "linked.ipynb").symlink_to(honest)
        (folder / "via-link").mkdir()
        (folder / "via-link" / honest.name).symlink_to(honest)
        os.mkfifo(folder / "pipe.ipynb")


def assert_each_is_named(problems: dict[str, str]) -> None:
    assert "JSONDecodeError" in problems["broken"] and "RecursionError" in problems["deep"]
    assert "no list of cells" in problems["other"]
    assert "40 MB" in problems["huge"] and "no notebook" in problems["empty"]
    if LINUX:
        assert "link" in problems["linked"] and "link" in problems["via-link"]
        assert "no ordinary file" in problems["pipe"]
