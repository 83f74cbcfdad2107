"""Run a stranger's notebook in its own process, in a sandbox, with a package that lacks the answers.

parent (this file)  -- stdin: the request; sources of the exercises that were tried -->  worker (`runner.py`)
                    <-- stdout: the current step; outcomes, as data --

The parent neither runs nor unpickles anything from a student. The expected values are computed in the parent only.
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

from grpo_lab.course.checking.outcome_bytes import MAX_CONTENT_BYTES, from_bytes
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.package_copy import library_source, make_copy
from grpo_lab.sandbox.isolation import (
    MAX_MEMORY,
    MAX_TASKS,
    end_worker,
    isolated_command,
    kill_command,
    kill_worker,
    tasks_of,
)

RUNNER = "from grpo_lab.course.grading.runner import main; main()"
START_SECONDS = 180.0  # the time limit for the start of a worker, until its first step
MAX_STARTS = 12  # workers that are started for one notebook
MAX_LINE_BYTES = 1_000_000  # longest line from a worker
POLL_SECONDS = 0.05  # the interval at which a worker is observed
REMAINING_SECONDS = 5.0  # the longest wait for the next message of a worker that was killed
OVER_TIME = "took longer than the time limit"
TOO_MANY_TASKS = f"started more than {MAX_TASKS} threads or processes"
NOT_REACHED = "The notebook used up its time before this exercise."
# The results of a notebook: by exercise, the outcomes by seed or a sentence that explains why there are none.
Answers = dict[str, dict[int, list] | str]
# The reason why a cell failed, by the number of the cell.
Failures = dict[str, str]


class Sandbox:
    """A context manager that runs the notebooks of one assignment. Its temporary folder is removed when it closes.

    Args:
        exercises: The exercises of the assignment in order, by name. The package that submissions import lacks them.
        isolation: The kind of isolation, as `isolation.strongest_isolation` names it.
        seconds: The time limit for each cell and for each exercise. A case may take a fifth of it.
        hidden: Paths that no submission may read.
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
        self.folder.chmod(0o711)  # a worker that runs as another user has to reach its folder
        self._package = self.folder / "package"
        make_copy(self._package, exercises.values())

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception) -> None:
        for path in (self._package, *self._package.rglob("*")):
            path.chmod(0o700)
        _remove(self.folder)

    def stop(self) -> None:
        """Stop the workers that are running, and start no more."""
        self.stopped.set()

    def run(self, cells: list[Cell], seeds: list[int]) -> tuple[Answers, Failures]:
        """Run the cells of a notebook and try every exercise; return the answers and the cells that failed.

        If a worker ends early, the cell or the exercise that it was at has failed, and another worker runs the rest.
        So this method returns whatever the notebook does.

        Args:
            cells: The code cells of the notebook.
            seeds: The seeds from which the inputs are drawn.
        """
        answers: Answers = {}
        failed: Failures = {}
        end = time.monotonic() + START_SECONDS + 20 * self.seconds
        for _ in range(MAX_STARTS):
            untried = [name for name in self.exercises if name not in answers]
            if not untried or time.monotonic() > end or self.stopped.is_set():
                break
            worker_run = _WorkerRun(self, cells, untried, seeds, answers, failed)
            worker_run.execute(end)
            cells = worker_run.charge_early_end()
        return dict.fromkeys(self.exercises, NOT_REACHED) | answers, failed

    def request(self, cells: list[Cell], untried: list[str], seeds: list[int]) -> dict:
        """Return the first message to a worker: cells, exercises and limits.

        untried: The names of the exercises that have no answer so far, in order.
        """
        return {
            "cells": [{"number": cell.number, "source": cell.source} for cell in cells],
            "exercises": list(self.exercises), "untried": untried, "seeds": seeds,
            "library_sources": self.library_sources_before(untried[0]), "case_seconds": self.seconds / 5,
            "cpu_seconds": int(START_SECONDS + 20 * self.seconds), "memory": MAX_MEMORY,
        }  # fmt: skip

    def library_sources_before(self, name: str) -> dict[str, str]:
        """Return the library's sources of all exercises before this one, by name."""
        names = list(self.exercises)
        return {earlier: library_source(self.exercises[earlier]) for earlier in names[: names.index(name)]}

    def start(self, folder: Path, log) -> tuple[subprocess.Popen, list[str]]:
        """Start a worker; return it, and the command that ends it if a signal is not enough.

        Args:
            folder: The working folder of the worker.
            log: The open file that receives its error output.
        """
        name = f"grpo-lab-{uuid.uuid4().hex}"
        command, settings = isolated_command(self.isolation, name, self._package, RUNNER, folder, self._hidden)
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, **settings
        )
        return worker, kill_command(self.isolation, name)


class _WorkerRun:
    """A worker that runs a notebook. Its results are added to `answers` and `failed`.

    Its messages cannot be trusted, because the student's code may forge them. So the worker can only move forward
    through `steps`, and each step has one result.

    Args:
        sandbox: The sandbox that starts the worker.
        cells: The cells that the worker runs.
        untried: The names of the exercises that it tries, in order.
        seeds: The seeds from which the inputs are drawn.
        answers: The answers by exercise, to which this run adds.
        failed: The reasons why cells failed, to which this run adds.
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
        self.outcomes = {}  # the outcomes of the current exercise as bytes, by seed
        self.stop_reason = ""  # the reason why the parent stopped the worker
        self.log_end = ""  # the end of the worker's error output

    def execute(self, end: float) -> None:
        """Start the worker, process its messages, and end it.

        end: The time, by `time.monotonic`, at which the worker is stopped.
        """
        sandbox = self.sandbox
        messages = queue.Queue(maxsize=4)
        is_over = threading.Event()
        folder = Path(tempfile.mkdtemp(dir=sandbox.folder))
        with tempfile.TemporaryFile(dir=sandbox.folder) as log:
            worker, kill = sandbox.start(folder, log)
            threading.Thread(target=_read_messages, args=(worker.stdout, messages, is_over), daemon=True).start()
            try:
                self._send(worker, sandbox.request(self.cells, self.untried, self.seeds))
                self._process_messages(worker, messages, end)
                if self.stop_reason == TOO_MANY_TASKS:
                    kill_worker(worker, kill)
                    self._process_remaining_messages(worker, messages)
            finally:
                is_over.set()
                end_worker(worker, kill)
            log.seek(max(0, log.seek(0, os.SEEK_END) - 500))
            self.log_end = log.read(500).decode("utf-8", "replace")
        self.exit_code = worker.returncode
        _remove(folder)

    def _process_messages(self, worker, messages: queue.Queue, end: float) -> None:
        """Process messages until the worker is done, has ended, or exceeds a limit; each step has its own deadline."""
        deadline = time.monotonic() + START_SECONDS
        while self.step_index < len(self.steps) - 1:
            if time.monotonic() > min(deadline, end) or self.sandbox.stopped.is_set():
                self.stop_reason = OVER_TIME
            elif tasks_of(worker.pid) > MAX_TASKS:
                self.stop_reason = TOO_MANY_TASKS
            if self.stop_reason:
                return
            try:
                message, content = messages.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if message is None:
                return
            if self._process(message, content, worker):
                deadline = time.monotonic() + self.sandbox.seconds

    def _process_remaining_messages(self, worker, messages: queue.Queue) -> None:
        """Process what a worker had sent before it was killed.

        A worker announces a cell before it runs it. So the cell that started the threads is known, even if this process
        counted the threads before it read the announcement.
        """
        with suppress(queue.Empty):
            for _ in self.steps:
                message, content = messages.get(timeout=REMAINING_SECONDS)
                if message is None:
                    return
                self._process(message, content, worker)

    def _process(self, message: dict, content: bytes, worker) -> bool:
        """Store what a message contains; return True if the worker has moved to a later step."""
        step = next(((kind, message[kind]) for kind in ("cell", "exercise", "done") if kind in message), None)
        if step in self.steps[self.step_index + 1 :]:
            self.step_index, self.outcomes = self.steps.index(step), {}
            return True
        if "failed" in message and isinstance(message["failed"], dict):
            numbers = {str(cell.number) for cell in self.cells}
            reasons = {number: str(reason)[:1000] for number, reason in message["failed"].items()}
            self.failed |= {number: reason for number, reason in reasons.items() if number in numbers}
        kind, name = self.steps[self.step_index] if self.step_index >= 0 else ("", "")
        if kind == "exercise" and name not in self.answers:
            self._store_outcomes(name, message, content)
            if name in self.answers:
                following = self.untried[self.untried.index(name) + 1 :]
                sources = self.sandbox.library_sources_before(following[0]) if following else {}
                self._send(worker, {"library_sources": sources})
        return False

    def _store_outcomes(self, name: str, message: dict, content: bytes) -> None:
        """Store the outcomes for one seed, or the sentence that explains why there are none.

        The answer is complete once the outcomes for all seeds are there.
        """
        if "fault" in message:
            self.answers[name] = str(message["fault"])[:1000]
        elif message.get("seed") in self.seeds:
            self.outcomes[message["seed"]] = content
        if name not in self.answers and len(self.outcomes) == len(self.seeds):
            try:
                self.answers[name] = {seed: from_bytes(content) for seed, content in self.outcomes.items()}
            except ValueError as error:
                self.answers[name] = f"What it returned could not be used: {error}"[:400]

    def _send(self, worker, message: dict) -> None:
        with suppress(OSError):  # raised if the worker has ended
            worker.stdin.write(json.dumps(message).encode() + b"\n")
            worker.stdin.flush()

    def charge_early_end(self) -> list[Cell]:
        """Record an early end of the worker as a failure of the step that it was at.

        Returns:
            The cells that the next worker runs: all but a cell that ended this one.
        """
        kind, subject = self.steps[self.step_index] if self.step_index >= 0 else ("start", "")
        reason = self.stop_reason or f"ended the whole process (exit code {self.exit_code})"
        if kind == "cell":
            self.failed[str(subject)] = reason
            return [cell for cell in self.cells if cell.number != subject]
        if kind == "exercise":
            self.answers.setdefault(subject, f"It {reason}.")
        elif not self.sandbox.stopped.is_set():
            log_end = self.log_end.strip()[-300:]
            sentence = f"The process for this notebook did not start ({log_end}): tell your teacher."
            if kind == "done":
                sentence = "No result came back from it."
            self.answers.update({name: sentence for name in self.untried if name not in self.answers})
        return self.cells


def _remove(folder: Path) -> None:
    """Remove a folder as far as possible. Folders nested deeper than Python's recursion limit stay."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _read_messages(stream, messages: queue.Queue, is_over: threading.Event) -> None:
    """Read a worker's messages into a queue, until the stream ends or `is_over` is set.

    A message is a line of JSON, followed by as many bytes as its entry "bytes" says. The end of the stream becomes the
    message None.
    """
    message, content = {}, b""
    while message is not None and not is_over.is_set():
        try:
            line = stream.readline(MAX_LINE_BYTES)
            message = json.loads(line) if line else None
            if message is not None:
                size = message.get("bytes", 0)
                content = stream.read(size) if type(size) is int and 0 < size <= MAX_CONTENT_BYTES else b""
        except (ValueError, OSError, AttributeError, RecursionError):
            return  # later messages cannot be read either; the worker is stopped when its time is over
        while not is_over.is_set():
            with suppress(queue.Full):
                messages.put((message, content), timeout=0.5)
                break
