"""A stranger's notebook, run in an isolated process of its own, with a package that lacks the answers.

parent (this file)  -- stdin: what to run; the library's source of what has been judged -->  worker (`runner.py`)
                    <-- stdout: the step that it is at; outcomes, as data --

The parent neither runs nor unpickles anything of a student's, and what is right is computed in the parent only.
"""

import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from grpo_lab.course.checking.outcome_bytes import MAX_CONTENT, from_bytes
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.package_copy import library_source, make_copy
from grpo_lab.sandbox.isolation import MAX_TASKS, MEMORY, end_worker, isolated_command, kill_command, tasks_of

RUNNER = "from grpo_lab.course.grading.runner import main; main()"
START_SECONDS = 180.0
MAX_STARTS, MAX_LINE, LOOK = 12, 1_000_000, 0.05
ENDLESS = "took longer than the time limit"
CROWD = f"started more than {MAX_TASKS} threads or processes"
UNREACHED = "The notebook used up its time before this exercise."
# Of one notebook: for each exercise its outcomes by seed, or a sentence that says why there are none; and by the number
# of each cell that failed, why.
Answers = dict[str, dict[int, list] | str]
Failures = dict[str, str]


class Sandbox:
    """A runner of the notebooks of one assignment. A context manager: its folder goes when it closes.

    Args:
        exercises: of the assignment, in order. The package that submissions import lacks them, until each is judged.
        isolation: The kind of isolation, as `strongest_isolation` names it.
        seconds: for a cell and for an exercise; an exercise's case has a fifth.
        hidden: paths that no submission may read, wherever they lie.
    """

    def __init__(
        self, exercises: dict[str, Exercise], isolation: str, seconds: float = 30.0, hidden: Iterable[Path] = ()
    ):
        self.exercises = exercises
        self.isolation = isolation
        self.seconds = seconds
        self._hidden = [Path(path).resolve() for path in hidden]
        self.stopped = threading.Event()
        self.folder = Path(tempfile.mkdtemp(prefix="grpo-lab-grading-")).resolve()
        self.folder.chmod(0o711)  # the worker may belong to another user
        self._package = self.folder / "package"
        make_copy(self._package, exercises.values())

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception) -> None:
        for path in (self._package, *self._package.rglob("*")):
            path.chmod(0o700)
        _remove(self.folder)

    def stop(self) -> None:
        """End what runs, and run nothing more."""
        self.stopped.set()

    def run(self, cells: list[Cell], seeds: list[int]) -> tuple[Answers, Failures]:
        """Run a notebook's cells, and every exercise. Whatever happens in there, this returns.

        A process that ends early costs the cell or the exercise that it was at; the rest is run by another one.
        """
        answers: Answers = {}
        failed: Failures = {}
        end = time.monotonic() + START_SECONDS + 20 * self.seconds
        for _ in range(MAX_STARTS):
            untried = [name for name in self.exercises if name not in answers]
            if not untried or time.monotonic() > end or self.stopped.is_set():
                break
            run = _Run(self, cells, untried, seeds, answers, failed)
            run.watch(end)
            cells = run.blame()
        return dict.fromkeys(self.exercises, UNREACHED) | answers, failed

    def request(self, cells: list[Cell], untried: list[str], seeds: list[int]) -> dict:
        """The first message to a worker: cells, exercises and limits."""
        return {
            "cells": [{"number": cell.number, "source": cell.source} for cell in cells],
            "exercises": list(self.exercises), "untried": untried, "lent": self.lent_until(untried[0]), "seeds": seeds,
            "case_seconds": self.seconds / 5, "cpu_seconds": int(START_SECONDS + 20 * self.seconds), "memory": MEMORY,
        }  # fmt: skip

    def lent_until(self, name: str) -> dict[str, str]:
        """The library's source of every exercise that stands before this one."""
        names = list(self.exercises)
        return {lent: library_source(self.exercises[lent]) for lent in names[: names.index(name)]}

    def start(self, folder: Path, log) -> tuple[subprocess.Popen, list[str]]:
        """A worker, and the command that ends it where a signal is not enough."""
        name = f"grpo-lab-{uuid.uuid4().hex}"
        command, settings = isolated_command(self.isolation, name, self._package, RUNNER, folder, self._hidden)
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, **settings
        )
        return worker, kill_command(self.isolation, name)


class _Run:
    """One process: it is watched step by step, and its results are put into `answers` and `failed`.

    A step counts once, and only onward: what the worker says about itself is a stranger's word.
    """

    def __init__(
        self, sandbox: Sandbox, cells: list[Cell], untried: list[str], seeds, answers: Answers, failed: Failures
    ):
        self.sandbox = sandbox
        self.cells = cells
        self.untried = untried
        self.seeds = seeds
        self.answers, self.failed = answers, failed
        self.steps = [
            *(("cell", cell.number) for cell in cells),
            *(("exercise", name) for name in untried),
            ("done", ""),
        ]
        self.step_index = -1
        self.outcomes = {}
        self.reason = ""
        self.log_end = ""

    def watch(self, end: float) -> None:
        """Watch the process from its start to its end."""
        sandbox = self.sandbox
        messages = queue.Queue(maxsize=4)
        over = threading.Event()
        folder = Path(tempfile.mkdtemp(dir=sandbox.folder))
        with tempfile.TemporaryFile(dir=sandbox.folder) as log:
            worker, kill = sandbox.start(folder, log)
            threading.Thread(target=_read, args=(worker.stdout, messages, over), daemon=True).start()
            try:
                self._tell(worker, sandbox.request(self.cells, self.untried, self.seeds))
                self._follow(worker, messages, end)
            finally:
                over.set()
                end_worker(worker, kill)
            log.seek(max(0, log.seek(0, os.SEEK_END) - 500))
            self.log_end = log.read(500).decode("utf-8", "replace")
        self.code = worker.returncode
        _remove(folder)

    def _follow(self, worker, messages: queue.Queue, end: float) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.step_index < len(self.steps) - 1:
            if time.monotonic() > min(deadline, end) or self.sandbox.stopped.is_set():
                self.reason = ENDLESS
            elif tasks_of(worker.pid) > MAX_TASKS:
                self.reason = CROWD
            if self.reason:
                return
            try:
                message, content = messages.get(timeout=LOOK)
            except queue.Empty:
                continue
            if message is None:
                return
            if self._takes(message, content, worker):
                deadline = time.monotonic() + self.sandbox.seconds

    def _takes(self, message: dict, content: bytes, worker) -> bool:
        """Take a message in; True if it is a step onward."""
        step = next(((kind, message[kind]) for kind in ("cell", "exercise", "done") if kind in message), None)
        if step in self.steps[self.step_index + 1 :]:
            self.step_index, self.outcomes = self.steps.index(step), {}
            return True
        if "failed" in message and isinstance(message["failed"], dict):
            numbers = {str(cell.number) for cell in self.cells}
            self.failed |= {n: str(why)[:1000] for n, why in message["failed"].items() if n in numbers}
        kind, name = self.steps[self.step_index] if self.step_index >= 0 else ("", "")
        if kind == "exercise" and name not in self.answers:
            self._answered(name, message, content)
            if name in self.answers:
                later = self.untried[self.untried.index(name) + 1 :]
                self._tell(worker, {"lent": self.sandbox.lent_until(later[0]) if later else {}})
        return False

    def _answered(self, name: str, message: dict, content: bytes) -> None:
        """Take the outcomes for one seed, or the sentence that says why there are none."""
        if "fault" in message:
            self.answers[name] = str(message["fault"])[:1000]
        elif message.get("seed") in self.seeds:
            self.outcomes[message["seed"]] = content
        if name not in self.answers and len(self.outcomes) == len(self.seeds):
            try:
                self.answers[name] = {seed: from_bytes(content) for seed, content in self.outcomes.items()}
            except ValueError as error:
                self.answers[name] = f"What it returned could not be taken over: {error}"[:400]

    def _tell(self, worker, request: dict) -> None:
        with suppress(OSError):  # it has ended
            worker.stdin.write(json.dumps(request).encode() + b"\n")
            worker.stdin.flush()

    def blame(self) -> list[Cell]:
        """Charge an early end of the process to the step that it was at. Returns the cells to run next time."""
        kind, subject = self.steps[self.step_index] if self.step_index >= 0 else ("start", "")
        why = self.reason or f"ended the whole process (exit code {self.code})"
        if kind == "cell":
            self.failed[str(subject)] = why
            return [cell for cell in self.cells if cell.number != subject]
        if kind == "exercise":
            self.answers.setdefault(subject, f"It {why}.")
        elif not self.sandbox.stopped.is_set():
            not_returned = "No result came back from it."
            why = f"The process for this notebook did not start ({self.log_end.strip()[-300:]}): tell your teacher."
            self.answers.update(
                {n: not_returned if kind == "done" else why for n in self.untried if n not in self.answers}
            )
        return self.cells


def _remove(folder: Path) -> None:
    """Remove a folder. What cannot be removed stays, such as folders nested deeper than Python's recursion limit."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _read(stream, messages: queue.Queue, over: threading.Event) -> None:
    """Put what a worker says into the queue: a line of JSON, and as many bytes behind it as it announces."""
    message, content = {}, b""
    while message is not None and not over.is_set():
        try:
            line = stream.readline(MAX_LINE)
            message = json.loads(line) if line else None
            if message is not None:
                size = message.get("bytes", 0)
                content = stream.read(size) if type(size) is int and 0 < size <= MAX_CONTENT else b""
        except (ValueError, OSError, AttributeError, RecursionError):
            return  # nothing of it can be understood any more; its time will run out
        while not over.is_set():
            with suppress(queue.Full):
                messages.put((message, content), timeout=0.5)
                break
