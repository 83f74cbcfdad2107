"""Files as students and platforms send them, for the tests of how they are collected."""

import io
import zipfile
from pathlib import Path

from grpo_lab.course.grading.collect import find_submissions
from grpo_lab.course.grading.submission import Submission
from tests.course.submission_notebooks import submission

RLOO = "def reinforce_loss(seq_logp, weights):\n    return seq_logp"


def notebook(number: str = "01") -> bytes:
    """Return the notebook of an assignment; in assignment 01 one function is answered, by `RLOO`."""
    return submission(number, **{"reinforce_loss": RLOO} if number == "01" else {})


def submissions_in(folder: Path, number: str | None = "01") -> dict[str, Submission]:
    """Return the submissions in a folder by student."""
    return {work.student: work for work in find_submissions(folder, number)[1]}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a folder, and return the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def has_answer(work: Submission) -> bool:
    """Return True if a submission has the answer `RLOO`."""
    return any(cell.source == RLOO for cell in work.cells)


def zipped(files: dict[str, bytes]) -> bytes:
    """Return a zip archive of these files."""
    archive_file = io.BytesIO()
    with zipfile.ZipFile(archive_file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return archive_file.getvalue()
