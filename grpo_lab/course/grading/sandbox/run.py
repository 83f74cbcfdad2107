"""The parent's side: start a worker for a notebook, watch it, start another where one died, collect what came back."""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.sandbox import jail, walls
from grpo_lab.course.grading.sandbox.package_copy import copy_of, digest, make_copy
from grpo_lab.course.grading.sandbox.places import private_places, readable_places, under_all_names
from grpo_lab.course.grading.sandbox.progress import END, Progress
from grpo_lab.course.grading.sandbox.returned import (
    ENDLESS,
    Death,
    Result,
    Returned,
    after_death,
    error_text,
    read_calls,
    read_json,
    read_result,
)
from grpo_lab.course.grading.sandbox.starting import START_SECONDS, Fork, Process, Template, python, worker_process
from grpo_lab.course.grading.sandbox.trees import remove_tree, size_of_open, size_of_tree
from grpo_lab.course.grading.submissions import Submission

LIBRARIES = [
    "grpo_lab.course.checking.run_case",
    "grpo_lab.course.checking.stand_ins",
    "einops",
    "math",
    "numpy",
    "torch.nn.functional",
]
MAX_STARTS, MAX_FOLDER, MAX_TEMPLATES = 12, 256_000_000, 8
KEPT_VARIABLES = ("SYSTEMROOT", "WINDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
TOO_MUCH = "wrote more than is allowed"
CROWD = f"started more than {jail.MAX_TASKS} threads or processes"
INSIDE = "/submission"  # the worker's own folder, where it has a root of its own


@dataclass(frozen=True)
class Limits:
    """Seconds for a cell and for an exercise, bytes of memory for a process."""

    seconds: float = 30.0
    memory: int = 4 * 2**30


@dataclass
class Package:
    """A stripped copy, what it must hash to, and the process that has loaded it, if there is one."""

    folder: Path
    digest: str
    template: Template | None = None

    def retire(self) -> None:
        if self.template is not None:
            self.template.close()


class Sandbox:
    """Runs submissions. A context manager: its folder, with the stripped copies, goes when it closes.

    Args:
        submissions: the folder that no submission may read.
        limits: of each worker.
        also_hidden: more paths that no submission may read.
    """

    def __init__(self, submissions: Path, limits: Limits, also_hidden: Iterable[Path] = ()):
        self.limits = limits
        self.folder = Path(tempfile.mkdtemp(prefix="grpo-lab-grading-")).resolve()
        for name in ("runs", "packages", "view", "probe", "templates"):
            (self.folder / name).mkdir()
        self.walls = self._probe()
        hidden = (submissions, *also_hidden, *private_places(), self.folder)
        self._readable = readable_places()
        self._hidden = under_all_names([str(p.resolve()) for p in hidden if p.exists()], self._readable)
        self._packages: dict[tuple[str, ...], Package] = {}  # those used last at the end
        self._templates: list[Template] = []
        # Workers share a package if the kernel lets none of them write it; else each has one of its own.
        self._shared = sys.platform == "linux" and not (self.walls["namespaces"] and self.walls["landlock"])
        self._preparing, self._stopped = threading.Lock(), threading.Event()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception) -> None:
        for template in self._templates:
            template.end()
        remove_tree(self.folder)

    def stop(self) -> None:
        """End what runs, and run nothing more."""
        self._stopped.set()

    def run(
        self,
        submission: Submission,
        exercises: dict[str, Exercise],
        seeds: list[int],
        blank: Iterable[str] = (),
        only: Iterable[str] = (),
        end: float = math.inf,
    ) -> Returned:
        """Run a notebook's cells and exercises. Whatever happens in there, this returns.

        exercises: those that the library does not have here. blank: those that it has; it stands in for them.
        only: of `exercises` the ones to run; none means all. end: when it is over at the latest.
        """
        end = min(end, time.monotonic() + START_SECONDS + 20 * self.limits.seconds)
        back, left = Returned(end=end), {name: exercises[name] for name in only or exercises}
        cells = [{"number": cell.number, "source": cell.source} for cell in submission.cells]
        for _ in range(MAX_STARTS):
            if not left or time.monotonic() > end or self._stopped.is_set():
                break
            folder = Path(tempfile.mkdtemp(dir=self.folder / "runs"))
            asked = {"cells": cells, "exercises": list(exercises), "seeds": seeds, "blank": list(blank)}
            asked["asked"] = list(left)
            died = self._start(folder, exercises, asked, end)
            self._collect(folder / "out", left, seeds, back)
            cells = after_death(died, cells, left, back)
            remove_tree(folder)
            if died is None:
                break
        for name in left:
            back.results[name] = Result(fault=("unreached", "the notebook used up its time before this exercise"))
        return back

    def _start(self, folder: Path, exercises: dict[str, Exercise], asked: dict, end: float) -> Death | None:
        """One worker, from its start to its end; None if it did everything."""
        package, template = self._prepared(exercises, asked["blank"])
        if not self._shared:
            package = copy_of(package, folder.with_name(f"{folder.name}-package"))
        numbers = [cell["number"] for cell in asked["cells"]]
        progress = Progress(folder / "out" / "progress", numbers, asked["asked"])
        with progress, tempfile.TemporaryFile(dir=self.folder) as log:
            worker = self._worker(self._spec(folder, package, asked), folder, template, log)
            try:
                why = self._watch(worker, progress, folder, log, end)
            finally:
                code = worker.end()
            progress.went_on()
            size = size_of_open(log)
            log.seek(max(0, size - 2000))
            said = log.read(2000).decode("utf-8", "replace")
        if not self._shared:
            remove_tree(package)
        why = why or (CROWD if code == jail.CROWD else TOO_MUCH if size > jail.MAX_LOG else "")
        return None if progress.where == END and not why else Death(progress.where, why, code, said)

    def _prepared(self, exercises: dict[str, Exercise], blank: list[str]) -> tuple[Path, Template | None]:
        """The stripped copy for an assignment, as it was made, and what forks workers with it."""
        key = (*sorted(exercises), "", *blank)
        with self._preparing:
            package = self._packages.pop(key, None)
            if package is not None and not _is_as_made(package):
                package.retire()
                package = None
            self._packages[key] = package = package or self._new_package(exercises, blank)
            for earlier in list(self._packages)[:-MAX_TEMPLATES]:
                self._packages.pop(earlier).retire()
        ready = package.template is not None and package.template.wait(self._stopped.is_set)
        return package.folder, package.template if ready else None

    def _new_package(self, exercises: dict[str, Exercise], blank: list[str]) -> Package:
        folder = Path(tempfile.mkdtemp(dir=self.folder / "packages"))
        make_copy(folder, exercises.values())
        package = Package(folder, digest(folder))
        if self._shared:
            settings = {"exercises": list(exercises), "blank": blank, "libraries": LIBRARIES, **self._places(folder)}
            package.template = Template(folder, settings, _environment(self.folder / "templates"))
            self._templates.append(package.template)
        return package

    def _worker(self, spec: dict, folder: Path, template: Template | None, log) -> Process | Fork:
        """Forked from the template where there is one, else started by itself."""
        path = folder / "spec.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        if template is not None:
            with contextlib.suppress(OSError):  # it has ended
                return template.start(spec, log)
        return worker_process(path, spec["environment"], log)

    def _watch(self, worker: Process | Fork, progress: Progress, folder: Path, log, end: float) -> str:
        """Wait for the end; "" or why it had to be brought about. Each step has its time, and all together have."""
        began, limit, look = time.monotonic(), START_SECONDS, 0
        while worker.poll() is None:
            time.sleep(0.05)
            now = time.monotonic()
            if progress.went_on():
                began, limit, end = now, self.limits.seconds, min(end, now + 20 * self.limits.seconds)
            if now - began > limit or now > end or self._stopped.is_set():
                return ENDLESS
            look += 1
            if size_of_open(log) > jail.MAX_LOG or (look % 20 == 0 and size_of_tree(folder) > MAX_FOLDER):
                return TOO_MUCH
        return ""

    def _places(self, package: Path) -> dict[str, list[str]]:
        return {"readable": [*self._readable, str(package)], "hidden": self._hidden}

    def _spec(self, folder: Path, package: Path, asked: dict) -> dict:
        inside = not self.walls["namespaces"]
        own, places = INSIDE if inside else str(folder), self._places(package)
        shown = {place: os.path.realpath(place) for place in places["readable"]}
        statement = f"from grpo_lab.course.grading.sandbox.worker import main; main({own + '/spec.json'!r})"
        return {
            "namespaces": inside, "view": str(self.folder / "view"), "shown": shown | {own: str(folder)}, **places,
            "command": python(package, statement), "environment": _environment(own), "folder": own, **asked,
            "walls": self.walls, "case_seconds": self.limits.seconds / 5, "memory": self.limits.memory,
            "libraries": LIBRARIES, "cpu_seconds": int(START_SECONDS + 20 * self.limits.seconds),
        }  # fmt: skip

    def _probe(self) -> dict[str, str]:
        """Which walls this machine can put up: wall -> "", or why not. No student's code has run yet."""
        found = {}
        for script, *arguments in ((jail.__file__, "--probe", str(self.folder / "probe")), (walls.__file__,)):
            done = subprocess.run(
                [sys.executable, "-I", "-B", script, *arguments],
                capture_output=True, encoding="utf-8", timeout=60, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode != 0:
                raise RuntimeError(f"the walls cannot be tried here: {done.stderr[-500:]}")
            found |= json.loads(done.stdout)
        return found

    def _collect(self, out: Path, left: dict[str, Exercise], seeds: list[int], back: Returned) -> None:
        back.cells |= {str(k)[:8]: error_text(v) for k, v in read_json(out / "cells.json").items()}
        for name in list(left):
            back.calls[name] = read_calls(out, name)
            if (result := read_result(out, name, seeds)) is not None:
                back.results[name] = result
                del left[name]


def _is_as_made(package: Package) -> bool:
    try:
        return digest(package.folder) == package.digest
    except OSError:  # what cannot be read is not as it was made
        return False


def _environment(folder: Path | str) -> dict[str, str]:
    """Nothing of the teacher's environment but what Python needs to start."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    own = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "MPLCONFIGDIR", "HF_HOME"), str(folder))
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    rest = {"PATH": os.defpath, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return kept | own | one | rest | {"MPLBACKEND": "Agg", "GRPO_LAB_PROFILE": "fast", "LOGNAME": "student"}
