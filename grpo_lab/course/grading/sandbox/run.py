"""The parent's side: start a worker for a notebook, watch it, start another where one died, collect what came back."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import einops
import safetensors
import torch

import grpo_lab
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.sandbox.package_copy import make_copy
from grpo_lab.course.grading.sandbox.returned import (
    ENDLESS,
    Death,
    Result,
    Returned,
    after_death,
    error_text,
    last_line,
    read_json,
    read_result,
)
from grpo_lab.course.grading.sandbox.trees import remove_tree, size_of, size_of_tree
from grpo_lab.course.grading.submissions import Submission

JAIL = Path(__file__).with_name("jail.py")
LIBRARIES = [
    "grpo_lab.course.checking.run_case",
    "grpo_lab.course.checking.stand_ins",
    "einops",
    "math",
    "numpy",
    "torch.nn.functional",
]
START_SECONDS, MAX_STARTS, MAX_FOLDER = 180.0, 12, 256_000_000
KEPT_VARIABLES = ("SYSTEMROOT", "WINDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
TOO_MUCH = "wrote more than is allowed"


@dataclass(frozen=True)
class Limits:
    """Seconds for a cell and for an exercise, bytes of memory for a process."""

    seconds: float = 30.0
    memory: int = 4 * 2**30


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
        for name in ("runs", "packages", "view", "probe"):
            (self.folder / name).mkdir()
        self.walls = self._probe()
        self._hidden = [str(p) for p in (submissions.resolve(), *also_hidden, *_private_places()) if p.exists()]
        self._packages: dict[tuple[str, ...], Path] = {}
        self._preparing, self._stopped = threading.Lock(), threading.Event()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception) -> None:
        remove_tree(self.folder)

    def prepare(self, exercises: dict[str, Exercise]) -> None:
        """Make the stripped copy for an assignment, once."""
        key = tuple(sorted(exercises))
        with self._preparing:
            if key not in self._packages:
                folder = self.folder / "packages" / str(len(self._packages))
                folder.mkdir()
                self._packages[key] = make_copy(folder, exercises.values())

    def stop(self) -> None:
        """End what runs, and run nothing more."""
        self._stopped.set()

    def run(
        self, submission: Submission, exercises: dict[str, Exercise], seeds: list[int], blank: Iterable[str] = ()
    ) -> Returned:
        """Run a notebook's cells and exercises. Whatever happens in there, this returns.

        blank: exercises that are not asked for here, since their stubs are untouched; the library stands in for them.
        """
        self.prepare(exercises)
        package = self._packages[tuple(sorted(exercises))]
        back, left = Returned(), dict(exercises)
        cells = [{"number": cell.number, "source": cell.source} for cell in submission.cells]
        end = time.monotonic() + START_SECONDS + 20 * self.limits.seconds
        for _ in range(MAX_STARTS):
            if not left or time.monotonic() > end or self._stopped.is_set():
                break
            folder = Path(tempfile.mkdtemp(dir=self.folder / "runs"))
            died = self._start(folder, package, cells, list(left), seeds, end, list(blank))
            self._collect(folder / "out", left, seeds, back)
            cells = after_death(died, cells, left, back)
            remove_tree(folder)
            if died is None:
                break
        for name in left:
            back.results[name] = Result(fault=("unreached", "the notebook used up its time before this exercise"))
        return back

    def _start(self, folder: Path, package: Path, cells, names, seeds, end: float, blank) -> Death | None:
        """One worker, from its start to its end; None if it did everything."""
        spec = self._spec(folder, package, cells, names, seeds) | {"blank": blank}
        path = folder / "spec.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        with open(folder.with_suffix(".log"), "w+b") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", str(JAIL), str(path)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, cwd=folder,
                env=_environment(folder), start_new_session=True,
            )  # fmt: skip
            try:
                why = self._watch(process, folder, end)
            finally:
                _kill(process)
            log.seek(max(0, log.tell() - 2000) if log.tell() else 0)
            said = log.read(2000).decode("utf-8", "replace")
        where = last_line(folder / "out" / "progress")
        return None if where.get("at") == "done" and not why else Death(where, why, process.returncode, said)

    def _watch(self, process: subprocess.Popen, folder: Path, end: float) -> str:
        """Wait for the end; "" or why it had to be brought about."""
        seen, began, limit, look = None, time.monotonic(), START_SECONDS, 0
        while process.poll() is None:
            time.sleep(0.05)
            now, size = time.monotonic(), size_of(folder / "out" / "progress")
            if size != seen:
                seen, began, limit = size, now, self.limits.seconds if size else START_SECONDS
            if now - began > limit or now > end or self._stopped.is_set():
                return ENDLESS
            look += 1
            if look % 20 == 0 and size_of_tree(folder) > MAX_FOLDER:
                return TOO_MUCH
        return ""

    def _spec(self, folder: Path, package: Path, cells, names, seeds) -> dict:
        inside = not self.walls["namespaces"]
        view = self.folder / "view"
        own, root = (str(view / "run"), str(view / "package")) if inside else (str(folder), str(package))
        hidden = [*self._hidden, str(self.folder)]
        libraries = _library_folders()
        kept = sorted({str(Path(p).resolve()) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix, *libraries)})
        code = f"import sys; sys.path[:0] = [{root!r}]; sys.path += {libraries!r}; "
        code += f"from grpo_lab.course.grading.sandbox.worker import main; main({own + '/spec.json'!r})"
        return {
            "namespaces": inside, "view": str(view), "shown": {"run": str(folder), "package": str(package)},
            "hidden": hidden, "kept": [*kept, *([] if inside else [str(folder), str(package)]), own, root],
            "command": [sys.executable, "-I", "-B", "-X", "utf8", "-c", code],
            "environment": _environment(Path(own)), "folder": own, "package": root, "cells": cells,
            "exercises": names, "seeds": seeds, "walls": self.walls,
            "case_seconds": self.limits.seconds / 5, "memory": self.limits.memory, "libraries": LIBRARIES,
            "cpu_seconds": int(START_SECONDS + 20 * self.limits.seconds),
        }  # fmt: skip

    def _probe(self) -> dict[str, str]:
        """Which walls this machine can put up: wall -> "", or why not. No student's code has run yet."""
        found = {}
        for script, *arguments in ((JAIL, "--probe", str(self.folder / "probe")), (JAIL.with_name("walls.py"),)):
            done = subprocess.run(
                [sys.executable, "-I", "-B", str(script), *arguments],
                capture_output=True, encoding="utf-8", timeout=60, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode != 0:
                raise RuntimeError(f"the walls cannot be tried here: {done.stderr[-500:]}")
            found |= json.loads(done.stdout)
        return found

    def _collect(self, out: Path, left: dict[str, Exercise], seeds: list[int], back: Returned) -> None:
        back.cells |= {str(k)[:8]: error_text(v) for k, v in read_json(out / "cells.json").items()}
        for name in list(left):
            if (result := read_result(out, name, seeds)) is not None:
                back.results[name] = result
                del left[name]


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the teacher's environment but what Python needs to start."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    own = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "MPLCONFIGDIR", "HF_HOME"), str(folder))
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    rest = {"PATH": os.defpath, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return kept | own | one | rest | {"MPLBACKEND": "Agg", "GRPO_LAB_PROFILE": "fast"}


def _library_folders() -> list[str]:
    """Where torch and the others lie: not always below Python's own folder."""
    return sorted({str(Path(module.__file__).resolve().parents[1]) for module in (torch, einops, safetensors)})


def _private_places() -> list[Path]:
    """The real package, the rest of its checkout, and the home folder."""
    package = Path(grpo_lab.__file__).resolve().parent
    checkout = [package.parent] if (package.parent / "pyproject.toml").is_file() else []
    return [package, *checkout, Path.home().resolve()]


def _kill(process: subprocess.Popen) -> None:
    """The process and its group. In name spaces, all that it ever started dies with it."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True)
    except (ProcessLookupError, PermissionError):
        pass
    process.kill()
    process.wait()
