"""A notebook as a stranger wrote it: JSON, the assignment that it belongs to, and the cells that grading runs."""

import ast
import json
import re
from dataclasses import dataclass

from grpo_lab.base.checks import InputError
from grpo_lab.course.release.notebooks import ASSIGNMENTS, NOTHING_WRITTEN, demonstration, number_of

MAX_CELL, MAX_CELLS = 200_000, 2_000  # characters, cells


@dataclass(frozen=True)
class Cell:
    """A code cell that is to be run. number: of all cells from 1, as a reader counts; exercise: the one it is for."""

    number: int
    source: str
    exercise: str = ""

    @property
    def defines(self) -> list[str]:
        """The functions at its top level."""
        try:
            return [node.name for node in ast.parse(self.source).body if isinstance(node, ast.FunctionDef)]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []


def read_cells(content: bytes) -> list[dict]:
    """The cells of a notebook file.

    Raises:
        InputError: with a sentence for the report, if it is no notebook.
    """
    if not content.strip():
        raise InputError("the file is empty")
    try:
        document = json.loads(content)  # UTF-8, with a byte order mark or without, and UTF-16
    except (ValueError, RecursionError) as error:
        raise InputError(f"it cannot be read as a notebook ({type(error).__name__})") from None
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise InputError("it is JSON, and no notebook: it has no list of cells")
    if len(cells) > MAX_CELLS:
        raise InputError(f"it has {len(cells)} cells; at most {MAX_CELLS} are read")
    return [cell if isinstance(cell, dict) else {} for cell in cells]


def assignment_of(named: str, cells: list[dict]) -> str:
    """The assignment of a notebook: by the exercises in its cells, marked or defined there; or else by its name."""
    exercises = {lab_metadata(cell).get("exercise") for cell in cells}
    if not any(exercises & set(names) for names in ASSIGNMENTS.values()):
        exercises = {name for cell in cells for name in Cell(0, source_of(cell)).defines}
    best = max(ASSIGNMENTS, key=lambda stem: (len(exercises & set(ASSIGNMENTS[stem])), stem == named))
    return best if exercises & set(ASSIGNMENTS[best]) else named


def assignment_of_file(name: str) -> str:
    """The assignment that a file is named after: `02_baselines_and_advantages`, also with ` (1)`, or `02-final`."""
    if name in ASSIGNMENTS:
        return name
    match = re.match(r"(\d\d[a-z]?)[_\- .]", name)
    return next((stem for stem in ASSIGNMENTS if match and stem.startswith(f"{match[1]}_")), "")


def lab_metadata(cell: dict) -> dict:
    """The assignment's marks in the metadata of a cell: {"exercise": ..., "role": ...}, or nothing."""
    metadata = _dict_at(_dict_at(cell, "metadata"), "grpo_lab")
    return {key: value for key, value in metadata.items() if isinstance(value, str)}


def cells_to_run(assignment: str, cells: list[dict]) -> tuple[list[Cell], list[str]]:
    """The code cells that grading runs, and notes on those that are too long.

    Left out are the training run and the numbers of a class.
    """
    _, run = demonstration(number_of(assignment))
    code_cells, notes = [], []
    for number, cell in enumerate(cells, 1):
        source = source_of(cell)
        if (
            cell.get("cell_type") != "code"
            or lab_metadata(cell).get("role") in ("demo", "variant")
            or source.strip() in ("", run)
        ):
            continue
        if re.fullmatch(r"check\(\w+\)", source.strip()):  # it says nothing here, and fails where there is no function
            continue
        if len(source) > MAX_CELL:
            notes.append(f"cell {number} has {len(source):,} characters and was left out")
        else:
            metadata = lab_metadata(cell)
            code_cells.append(Cell(number, source, "" if "role" in metadata else metadata.get("exercise", "")))
    return code_cells, notes


def written_answer(cells: list[dict]) -> str:
    """The text of the cell for the question in words; "" where nothing was written."""
    texts = (source_of(cell).strip() for cell in cells if lab_metadata(cell).get("role") == "written")
    return next((text[:MAX_CELL] for text in texts if text not in NOTHING_WRITTEN), "")


def class_of_variants(cells: list[dict]) -> str:
    """The mark of the class whose variants a notebook has; "" for one without."""
    return next((mark["class"] for cell in cells if "class" in (mark := lab_metadata(cell))), "")


def answers_as_text(cells: list[dict]) -> list[str]:
    """The exercises whose cell somebody has turned into text."""
    marks = [lab_metadata(cell) for cell in cells if cell.get("cell_type") in ("markdown", "raw")]
    return [mark["exercise"] for mark in marks if "exercise" in mark and "role" not in mark]


def source_of(cell: dict) -> str:
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""


def _dict_at(container: dict, key: str) -> dict:
    value = container.get(key)
    return value if isinstance(value, dict) else {}
