"""The downloads of learning platforms: find the folders of the students in them, and the student of each file."""

import re
from dataclasses import replace

from grpo_lab.course.grading.submission import Submission
from grpo_lab.course.grading.untrusted_files import File, file_stem

MAX_OUTER_FOLDERS = 4  # folders and archives that may lie around a class

# The names that learning platforms give. Moodle: "Ada Lovelace_1234567_assignsubmission_file_" is the name of a folder
# or the beginning of a file name. Canvas: "lovelaceada_LATE_1234_56789_name.ipynb".
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_\w+?_(?P<rest>.*)", re.DOTALL)
_CANVAS = re.compile(r"(?P<name>[^_]+)(?:_LATE)?_(?P<id>\d+)_(?P<file>\d{3,})_(?P<rest>.+)", re.DOTALL)


def owner_of(parts: tuple[str, ...]) -> Submission:
    """Return a submission without content for the student to whom a file belongs.

    The student's name is taken from a name that a platform gave, else from the outermost folder or the file itself.

    parts: The names of the folders on the way to the file, and the name of the file.
    """
    first, file = parts[0], parts[-1]
    own_name = file_stem(first) if len(parts) == 1 or first == file else first
    # Canvas is tried first: no name of Moodle's fits its pattern, but the rest of a Canvas name, which the student
    # chose, may look like one of Moodle's.
    if match := _CANVAS.fullmatch(first):
        file = match["rest"] if len(parts) == 1 else file
        return Submission(match["name"], file, "canvas", match["id"], upload_id=int(match["file"][:18]))
    if match := _MOODLE.fullmatch(first) or _MOODLE.fullmatch(own_name + "_"):
        file = match["rest"] or file if len(parts) == 1 else file
        return Submission(match["name"].strip(), file, "moodle", match["id"])
    return Submission(own_name, file)


def files_of_class(files: list[File], is_archive: bool) -> list[File]:
    """Return the files with paths that begin at the students, without folders or archives that contain the whole class.

    Such an outer folder is removed only if all files lie in it, and never if a platform gave its name to a student: an
    archive that a student hands in does not become a class. If the class is an archive, the archive itself is removed,
    and also a single folder in it that holds a folder for each student.

    Args:
        files: All files that were found.
        is_archive: Whether they were read from one archive.
    """
    layers = [files]
    for _ in range(MAX_OUTER_FOLDERS + 1 + is_archive):
        inner = layers[-1]
        if _is_download(inner):
            return inner
        outer = {file.parts[0] if len(file.parts) > 1 else "" for file in inner}
        if len(outer) != 1 or outer == {""} or owner_of((*outer, "")).platform:
            break
        layers.append([replace(file, parts=file.parts[1:]) for file in inner])
    class_layers = [layer for layer in layers[2:] if min(len(file.parts) for file in layer) > 1]
    return [*layers[:2], *class_layers][-1] if is_archive else files


def _is_download(files: list[File]) -> bool:
    """Return True for a platform's download: one outermost name has Moodle's form, or two have Canvas's."""
    platforms = [owner_of(parts).platform for parts in {file.parts[0]: file.parts for file in files}.values()]
    return "moodle" in platforms or platforms.count("canvas") > 1
