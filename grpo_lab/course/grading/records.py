"""What has been graded so far, on disk: a file for each notebook, written as soon as it is marked.

An interrupted grading goes on from them, and a student who is graded again meets the others' marks unchanged.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grpo_lab import __version__
from grpo_lab.course.checking.verdict import Part, Verdict
from grpo_lab.course.exercises import EXERCISES
from grpo_lab.course.grading.marks import Graded, Mark
from grpo_lab.course.grading.submissions import Submission

RUN = "run.json"
FIELDS = ("status", "message", "fault", "misconceptions", "got", "expected", "equation", "failing", "seconds")


@dataclass(frozen=True)
class Run:
    """The grading that a folder holds: its seed, the version that graded, whether it came to its end, and its settings.

    settings: what the teacher has set for this class, such as a roster; remembered until it is set otherwise.
    """

    seed: int
    version: str
    finished: bool
    settings: dict = field(default_factory=dict)


class Records:
    """The folder of one grading's records. All files are written whole or not at all."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.settings: dict = {}

    def run(self) -> Run | None:
        """The grading that is there; None if there is none that can be read."""
        try:
            return Run(**json.loads((self.folder / RUN).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def begin(self, seed: int, anew: bool) -> None:
        """Note that a grading has begun; `anew` forgets the marks of the one before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if anew:
            for path in self.folder.glob("*.json"):
                path.unlink()
        self._note(Run(seed, __version__, False, self.settings))

    def end(self, seed: int) -> None:
        self._note(Run(seed, __version__, True, self.settings))

    def _note(self, run: Run) -> None:
        write_whole(self.folder / RUN, json.dumps(asdict(run)))

    def keep(self, graded: Graded, seed: int) -> None:
        content = {"of": _of(graded.submission, seed), "cells": graded.cells, "marks": list(map(_mark, graded.marks))}
        write_whole(self._path(graded.submission), json.dumps(content, indent=1))

    def find(self, submission: Submission, seed: int, *, even_if_changed: bool = False) -> Graded | None:
        """The marks of this very file, by this seed and version; or with `even_if_changed` those of an earlier file."""
        try:
            content = json.loads(self._path(submission).read_text(encoding="utf-8"))
            of, now = content["of"], _of(submission, seed)
            if even_if_changed:
                of, now = {**of, "digest": ""}, {**now, "digest": ""}
            if of != now:
                return None
            return Graded(submission, [_marked(one) for one in content["marks"]], dict(content["cells"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, submission: Submission) -> Path:
        of_whom = json.dumps([submission.student, submission.number, submission.assignment])
        return self.folder / f"{hashlib.sha256(of_whom.encode()).hexdigest()[:24]}.json"


def _of(submission: Submission, seed: int) -> dict:
    return {
        "student": submission.student, "number": submission.number, "assignment": submission.assignment,
        "digest": submission.digest, "seed": seed, "grpo_lab": __version__,
    }  # fmt: skip


def _mark(mark: Mark) -> dict:
    verdict = None
    if mark.verdict is not None:
        verdict = {name: getattr(mark.verdict, name) for name in FIELDS}
        verdict["parts"] = [asdict(part) for part in mark.verdict.parts]
    own = {name: getattr(mark, name) for name in ("points", "status", "message", "hidden", "properties", "note")}
    return {"exercise": mark.exercise.name, **own, "verdict": verdict}


def _marked(content: dict) -> Mark:
    content = dict(content)
    exercise, verdict = EXERCISES[content.pop("exercise")], content.pop("verdict")
    if verdict is not None:
        parts = tuple(Part(**part) for part in verdict.pop("parts"))
        verdict = {name: tuple(value) if isinstance(value, list) else value for name, value in verdict.items()}
        verdict = Verdict(exercise.name, parts=parts, **verdict)
    return Mark(exercise, verdict=verdict, **content)


def write_whole(path: Path, text: str) -> None:
    """The file whole or not at all. What no file can hold, half of a character, becomes a question mark."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(text.encode("utf-8", "replace"))
    os.replace(unfinished, path)
