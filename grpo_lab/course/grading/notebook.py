"""A notebook as a stranger wrote it: JSON, the assignment that it belongs to, and the cells that grading runs."""

import ast
import json
import re
from dataclasses import dataclass

from grpo_lab.course.release.notebooks import ASSIGNMENTS, notebook_text
from grpo_lab.course.release.written import WRITTEN

MAX_CELL, MAX_CELLS, MAX_ANSWER = 200_000, 2_000, 20_000  # characters, cells, characters
_PLACEHOLDER = re.compile(r"\*?Your answer here\.( A few sentences are enough\.)?\*?")
_HEADING = re.compile(r"^#+ In your own words.*$", re.MULTILINE)
SKIPPED_ROLES = {"demo", "written"}  # a check, a hint and the progress say nothing in the sandbox


@dataclass(frozen=True)
class Cell:
    """A code cell that is to be run. `number` counts all cells from 1, as a reader does."""

    number: int
    source: str


def cells_of(content: bytes) -> list[dict]:
    """
    Raises:
        ValueError: with a sentence for the report, if it is no notebook.
    """
    if not content.strip():
        raise ValueError("the file is empty")
    try:
        document = json.loads(content)  # UTF-8, with a byte order mark or without, and UTF-16
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it cannot be read as a notebook ({type(error).__name__})") from None
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise ValueError("it is JSON, and no notebook: it has no list of cells")
    if len(cells) > MAX_CELLS:
        raise ValueError(f"it has {len(cells)} cells; at most {MAX_CELLS} are read")
    return [cell if isinstance(cell, dict) else {} for cell in cells]


def assignment_of(named: str, cells: list[dict]) -> str:
    """By the exercises in its cells, marked or defined there; or else by its name."""
    exercises = {mark(cell).get("exercise") for cell in cells}
    if not any(exercises & set(own) for own in ASSIGNMENTS.values()):
        exercises = {name for cell in cells for name in _defined(source_of(cell))}
    most = max(ASSIGNMENTS, key=lambda one: (len(exercises & set(ASSIGNMENTS[one])), one == named))
    return most if exercises & set(ASSIGNMENTS[most]) else named


def by_name(name: str) -> str:
    """`02_baselines_and_advantages`, and also `02_baselines_and_advantages (1)` or `02-final`."""
    if name in ASSIGNMENTS:
        return name
    match = re.match(r"(\d\d)[_\- .]", name)
    return next((found for found in ASSIGNMENTS if match and found.startswith(f"{match[1]}_")), "")


def _defined(source: str) -> list[str]:
    try:
        return [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def mark(cell: dict) -> dict:
    """What the assignment wrote into the metadata of this cell: {"exercise": ..., "role": ...}, or nothing."""
    written = _of(_of(cell, "metadata"), "grpo_lab")
    return {key: value for key, value in written.items() if isinstance(value, str)}


def marks_of(assignment: str, cells: list[dict]) -> list[dict]:
    """The mark of each cell; where an editor dropped them all, those of the assignment's cells of the same text."""
    marks = [mark(cell) for cell in cells]
    if any(marks):
        return marks
    own = json.loads(notebook_text(assignment[:2]))["cells"]
    by_text = {source_of(cell).strip(): mark(cell) for cell in own}
    return [by_text.get(source_of(cell).strip(), {}) for cell in cells]


def to_run(cells: list[dict], marks: list[dict]) -> tuple[list[Cell], list[str]]:
    """The code cells that grading runs, and what is said of those that are too long for it."""
    found, said = [], []
    for number, (cell, its) in enumerate(zip(cells, marks, strict=True), 1):
        source, role = source_of(cell), str(its.get("role"))
        if cell.get("cell_type") != "code" or not source.strip() or role in SKIPPED_ROLES:
            continue
        if len(source) > MAX_CELL:
            said.append(f"cell {number} has {len(source):,} characters and was left out")
        else:
            found.append(Cell(number, source))
    return found, said


def written_answer(assignment: str, cells: list[dict], marks: list[dict]) -> str:
    """All that was typed between the written question and the next cell of the assignment, in whichever cell.

    Args:
        assignment: its file stem, such as "02_baselines_and_advantages".
        cells, marks: each cell of the notebook, and what the assignment wrote into its metadata ({} for a new one).
    """
    question = re.compile(r"\s+".join(map(re.escape, WRITTEN[assignment[:2]].text.split())))
    found, here = [], False
    for cell, its in zip(cells, marks, strict=True):
        source = source_of(cell)
        asked = its.get("role") in ("question", "written")
        here = asked or (not its and (here or question.search(source) is not None))
        for own in (question, _HEADING, _PLACEHOLDER):
            source = own.sub("", source)
        found += [source.strip()] if here and re.search(r"\w", source) else []
    return "\n\n".join(found)[:MAX_ANSWER]


def source_of(cell: dict) -> str:
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""


def _of(container: dict, key: str) -> dict:
    value = container.get(key)
    return value if isinstance(value, dict) else {}
