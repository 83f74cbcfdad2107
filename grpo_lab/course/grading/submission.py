"""What a student handed in: a notebook from a stranger, its assignment, and the cells that the grading runs."""

import json
import re
from dataclasses import dataclass, field

from grpo_lab.base.checks import InputError
from grpo_lab.course.exercises import ASSIGNMENTS, Assignment
from grpo_lab.course.grading.messages import Cell
from grpo_lab.course.release.notebooks import NOTHING_WRITTEN, demonstration

MAX_CELL_LENGTH = 200_000  # characters of a cell that is run
MAX_CELLS = 2_000  # cells of a notebook


@dataclass
class Submission:
    """The notebook that one student handed in.

    Attributes:
        student: The name of the student, from the name of the folder or file, or from a learning platform.
        file: The file name that the student chose.
        platform: The learning platform, "moodle" or "canvas"; "" if the names come from no known one.
        platform_id: The number that the platform gives the student; "" without a platform.
        upload_id: The number that Canvas gives the file; a later upload has a larger one.
        assignment_stem: The file stem of the assignment; "" if the notebook belongs to none.
        cells: The code cells that the grading runs.
        written_answer: The answer to the question in words.
        problem: The reason why the notebook cannot be graded; "" if it can be.
        notes: Remarks for the teacher.
        exercises_as_text: The names of the exercises whose cell is a text cell, and not a code cell.
        class_fingerprint: The fingerprint of the formulas in a notebook with variants; "" without variants.
    """

    student: str
    file: str = ""
    platform: str = ""
    platform_id: str = ""
    upload_id: int = 0
    assignment_stem: str = ""
    cells: list[Cell] = field(default_factory=list)
    written_answer: str = ""
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    exercises_as_text: list[str] = field(default_factory=list)
    class_fingerprint: str = ""

    def code_of(self, exercise: str) -> list[Cell]:
        """Return the cells that define the function of an exercise, or were released for it."""
        return [cell for cell in self.cells if cell.exercise == exercise or exercise in cell.defines]


def read_cells(content: bytes) -> list[dict]:
    """Return the cells of a notebook file.

    Raises:
        InputError: If the content is not a notebook. The message is a sentence for the report.
    """
    if not content.strip():
        raise InputError("the file is empty")
    try:
        document = json.loads(content)  # json recognises UTF-8, with or without a byte order mark, and UTF-16
    except (ValueError, RecursionError) as error:
        raise InputError(f"it cannot be read as a notebook ({type(error).__name__})") from None
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise InputError("it is JSON, but not a notebook: it has no list of cells")
    if len(cells) > MAX_CELLS:
        raise InputError(f"it has {len(cells)} cells; at most {MAX_CELLS} are read")
    return [cell if isinstance(cell, dict) else {} for cell in cells]


def assignment_of(named: Assignment | None, cells: list[dict]) -> Assignment | None:
    """Return the assignment of a notebook: by the exercises in its cells, else by its file name.

    An exercise is in a cell if the cell's metadata name it. If no metadata do, the defined functions count.

    named: The assignment after which the file is named; None if there is none.
    """
    assignments = list(ASSIGNMENTS.values())
    names = {lab_metadata(cell).get("exercise") for cell in cells}
    if not any(names.intersection(assignment.exercise_names) for assignment in assignments):
        names = {name for cell in cells for name in Cell(0, cell_source(cell)).defines}
    best_match = max(
        assignments,
        key=lambda assignment: (len(names.intersection(assignment.exercise_names)), assignment == named),
    )
    return best_match if names.intersection(best_match.exercise_names) else named


def assignment_of_file(stem: str) -> Assignment | None:
    """Return the assignment after which a file is named, such as "02_baselines_and_advantages (1)" or "02-final".

    None if the name does not begin with the number of an assignment.
    """
    match = re.match(r"(\d\d[a-z]?)[_\- .]", stem)
    return ASSIGNMENTS.get(match[1]) if match else None


def lab_metadata(cell: dict) -> dict:
    """Return the metadata that a released assignment gives a cell, such as {"exercise": ..., "role": ...}.

    The result is empty for other cells. Values that are not texts are left out.
    """
    metadata = _dict_at(_dict_at(cell, "metadata"), "grpo_lab")
    return {key: value for key, value in metadata.items() if isinstance(value, str)}


def cells_to_run(assignment: Assignment, cells: list[dict]) -> tuple[list[Cell], list[str]]:
    """Return the code cells that the grading runs, and notes on cells that are too long.

    The demonstration with its training run and the results of a class's variants are left out.
    """
    _, demonstration_code = demonstration(assignment)
    code_cells, notes = [], []
    for number, cell in enumerate(cells, 1):
        source = cell_source(cell)
        if (
            cell.get("cell_type") != "code"
            or lab_metadata(cell).get("role") in ("demo", "variant")
            or source.strip() in ("", demonstration_code)
        ):
            continue
        if re.fullmatch(r"check\(\w+\)", source.strip()):  # `check` does nothing here, and fails without the function
            continue
        if len(source) > MAX_CELL_LENGTH:
            notes.append(f"cell {number} has {len(source):,} characters and was left out")
        else:
            metadata = lab_metadata(cell)
            code_cells.append(Cell(number, source, "" if "role" in metadata else metadata.get("exercise", "")))
    return code_cells, notes


def written_answer(cells: list[dict]) -> str:
    """Return the text of the cell for the question in words; "" if nothing was written."""
    texts = (cell_source(cell).strip() for cell in cells if lab_metadata(cell).get("role") == "written")
    return next((text[:MAX_CELL_LENGTH] for text in texts if text not in NOTHING_WRITTEN), "")


def class_fingerprint_of(cells: list[dict]) -> str:
    """Return the fingerprint of the formulas of a notebook with variants; "" for a notebook without."""
    all_metadata = map(lab_metadata, cells)
    return next((metadata["class"] for metadata in all_metadata if "class" in metadata), "")


def answers_as_text(cells: list[dict]) -> list[str]:
    """Return the names of the exercises whose cell was turned into a text cell."""
    text_metadata = [lab_metadata(cell) for cell in cells if cell.get("cell_type") in ("markdown", "raw")]
    return [metadata["exercise"] for metadata in text_metadata if "exercise" in metadata and "role" not in metadata]


def cell_source(cell: dict) -> str:
    """Return the source of a cell, which a file stores as a text or a list of lines."""
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""


def _dict_at(container: dict, key: str) -> dict:
    value = container.get(key)
    return value if isinstance(value, dict) else {}
