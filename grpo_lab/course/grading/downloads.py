"""The downloads of learning platforms: where a class begins in it, and whose a file is."""

import re
from dataclasses import dataclass, field, replace

from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.untrusted import File, stem

MAX_AROUND = 4  # folders and archives around a class

# What learning platforms make of names. Moodle: "Ada Lovelace_1234567_assignsubmission_file_", a folder or the
# beginning of a file's name. Canvas: "lovelaceada_LATE_1234_56789_name.ipynb".
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_\w+?_(?P<rest>.*)", re.DOTALL)
_CANVAS = re.compile(r"(?P<name>[^_]+)(?:_LATE)?_(?P<id>\d+)_(?P<file>\d{3,})_(?P<rest>.+)", re.DOTALL)


@dataclass
class Submission:
    """The notebook that one student handed in. `problem` says why it cannot be graded; empty if it can be.

    student: the name that its folder or file has, or that a learning platform gave it. file: what the student called
    it. platform: "moodle", "canvas" or ""; number: the platform's own, of the student; upload: Canvas's, of the file.
    written: the answer to the question in words. as_text: exercises whose cell is no code.
    of_class: the mark of a notebook with variants; "" without.
    """

    student: str
    file: str = ""
    platform: str = ""
    number: str = ""
    upload: int = 0
    assignment: str = ""
    cells: list[Cell] = field(default_factory=list)
    written: str = ""
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    as_text: list[str] = field(default_factory=list)
    of_class: str = ""

    def code_of(self, exercise: str) -> list[Cell]:
        """The cells that define this function, or were made for it."""
        return [cell for cell in self.cells if cell.exercise == exercise or exercise in cell.defines]


def owner_of(parts: tuple[str, ...]) -> Submission:
    """The student whose file this is: by a platform's name, or else by its outermost folder, or its own name."""
    first, file = parts[0], parts[-1]
    own_name = stem(first) if len(parts) == 1 or first == file else first
    # Canvas first: a name of Moodle's is none of Canvas's, and what a student called a file may look like Moodle's.
    if match := _CANVAS.fullmatch(first):
        file = match["rest"] if len(parts) == 1 else file
        return Submission(match["name"], file, "canvas", match["id"], upload=int(match["file"][:18]))
    if match := _MOODLE.fullmatch(first) or _MOODLE.fullmatch(own_name + "_"):
        file = match["rest"] or file if len(parts) == 1 else file
        return Submission(match["name"].strip(), file, "moodle", match["id"])
    return Submission(own_name, file)


def class_of(files: list[File], archive: bool) -> list[File]:
    """The files of the class itself: folders and archives around a platform's download are no student, and taken off.

    Only where all files lie in them, and never below the name that a platform gave a student: what somebody packs into
    a submission does not become the class. An archive stands for the class, whoever made it, and so does a single
    folder in it that holds a folder for each student.
    """
    layers = [files]
    for _ in range(MAX_AROUND + 1 + archive):
        inner = layers[-1]
        if _is_download(inner):
            return inner
        outer = {file.parts[0] if len(file.parts) > 1 else "" for file in inner}
        if len(outer) != 1 or outer == {""} or owner_of((*outer, "")).platform:
            break
        layers.append([replace(file, parts=file.parts[1:]) for file in inner])
    class_layers = [layer for layer in layers[2:] if min(len(file.parts) for file in layer) > 1]
    return [*layers[:2], *class_layers][-1] if archive else files


def _is_download(files: list[File]) -> bool:
    """Recognise a platform's download: by a name of Moodle's, or two of Canvas's."""
    platforms = [owner_of(parts).platform for parts in {file.parts[0]: file.parts for file in files}.values()]
    return "moodle" in platforms or platforms.count("canvas") > 1
