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
from typing import NamedTuple

from grpo_lab.course.checking.outcome_bytes import MAX_CONTENT_BYTES, from_bytes
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.package_copy import library_source, make_copy
from grpo_lab.sandbox.isolation import (
    MAX_MEMORY,
    MAX_TASKS,
    container_kill_command,
    count_tasks,
    end_worker,
    isolated_command,
    kill_worker,
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
        time_limit: The seconds that each cell and each exercise may take. A case may take a fifth of it.
        hidden_paths: Paths that no submission may read.
    """

    def __init__(
        self,
        exercises: dict[str, Exercise],
        isolation: str,
        time_limit: float = 30.0,
        hidden_paths: Iterable[Path] = (),
    ):
        self.exercises = exercises
        self.isolation = isolation
        self.time_limit = time_limit
        self._hidden_paths = [Path(path).resolve() for path in hidden_paths]
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
        failures: Failures = {}
        deadline = time.monotonic() + START_SECONDS + 20 * self.time_limit
        for _ in range(MAX_STARTS):
            untried = [name for name in self.exercises if name not in answers]
            if not untried or time.monotonic() > deadline or self.stopped.is_set():
                break
            result = WorkerRun(self, cells, untried, seeds).execute(deadline)
            answers |= result.answers
            failures |= result.failures
            cells = result.remaining_cells
        return dict.fromkeys(self.exercises, NOT_REACHED) | answers, failures

    def request(self, cells: list[Cell], untried: list[str], seeds: list[int]) -> dict:
        """Return the first message to a worker: cells, exercises and limits.

        untried: The names of the exercises that have no answer so far, in order.
        """
        return {
            "cells": [{"number": cell.number, "source": cell.source} for cell in cells],
            "exercises": list(self.exercises), "untried": untried, "seeds": seeds,
            "library_sources": self.library_sources_before(untried[0]), "case_seconds": self.time_limit / 5,
            "cpu_seconds": int(START_SECONDS + 20 * self.time_limit), "memory": MAX_MEMORY,
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
        command, settings = isolated_command(self.isolation, name, self._package, RUNNER, folder, self._hidden_paths)
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, **settings
        )
        return worker, container_kill_command(self.isolation, name)


class WorkerResult(NamedTuple):
    """The result of one worker.

    Attributes:
        answers: The answers to the exercises that it tried, or that no other worker need try.
        failures: The cells that failed in it.
        remaining_cells: The cells that the next worker runs: all but a cell that ended this one.
    """

    answers: Answers
    failures: Failures
    remaining_cells: list[Cell]


class WorkerRun:
    """A run of a notebook in one worker.

    The messages of the worker cannot be trusted, because the student's code may forge them. So it can only move forward
    through its steps, and each step has one result.

    Args:
        sandbox: The sandbox that starts the worker.
        cells: The cells that the worker runs.
        untried: The names of the exercises that it tries, in order.
        seeds: The seeds from which the inputs are drawn.
    """

    def __init__(self, sandbox: Sandbox, cells: list[Cell], untried: list[str], seeds: list[int]):
        self._sandbox = sandbox
        self._cells = cells
        self._untried = untried
        self._seeds = seeds
        self._answers: Answers = {}
        self._failures: Failures = {}
        self._steps: list[tuple[str, int | str]] = [
            *(("cell", cell.number) for cell in cells),
            *(("exercise", name) for name in untried),
            ("done", ""),
        ]
        self._step_index = -1
        self._outcomes: dict[int, bytes] = {}  # the outcomes of the current exercise, by seed
        self._stop_reason = ""  # the reason why the parent stopped the worker

    def execute(self, deadline: float) -> WorkerResult:
        """Start the worker, process its messages, end it, and return its result.

        deadline: The time, by `time.monotonic`, at which the worker is stopped.
        """
        sandbox = self._sandbox
        messages: queue.Queue = queue.Queue(maxsize=4)
        is_over = threading.Event()
        folder = Path(tempfile.mkdtemp(dir=sandbox.folder))
        with tempfile.TemporaryFile(dir=sandbox.folder) as log:
            worker, kill_command = sandbox.start(folder, log)
            threading.Thread(target=read_messages, args=(worker.stdout, messages, is_over), daemon=True).start()
            try:
                self._send(worker, sandbox.request(self._cells, self._untried, self._seeds))
                self._process_messages(worker, messages, deadline)
                if self._stop_reason == TOO_MANY_TASKS:
                    kill_worker(worker, kill_command)
                    self._process_remaining_messages(worker, messages)
            finally:
                is_over.set()
                end_worker(worker, kill_command)
            log.seek(max(0, log.seek(0, os.SEEK_END) - 500))
            log_end = log.read(500).decode("utf-8", "replace")
        _remove(folder)
        return self._result(worker.returncode, log_end)

    @property
    def _current_step(self) -> tuple[str, int | str]:
        """The kind of the step that the worker is at, and the number of its cell or the name of its exercise."""
        return self._steps[self._step_index] if self._step_index >= 0 else ("start", "")

    def _process_messages(self, worker: subprocess.Popen, messages: queue.Queue, deadline: float) -> None:
        """Process messages until the worker is done, has ended, or exceeds a limit.

        Each step has a deadline of its own besides that of the worker.
        """
        step_deadline = time.monotonic() + START_SECONDS
        while self._step_index < len(self._steps) - 1:
            if time.monotonic() > min(step_deadline, deadline) or self._sandbox.stopped.is_set():
                self._stop_reason = OVER_TIME
            elif count_tasks(worker.pid) > MAX_TASKS:
                self._stop_reason = TOO_MANY_TASKS
            if self._stop_reason:
                return
            try:
                message, content = messages.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if message is None:
                return
            if self._process(message, content, worker):
                step_deadline = time.monotonic() + self._sandbox.time_limit

    def _process_remaining_messages(self, worker: subprocess.Popen, messages: queue.Queue) -> None:
        """Process what a worker had sent before it was killed.

        A worker announces a cell before it runs it. So the cell that started the threads is known, even if this process
        counted the threads before it read the announcement.
        """
        with suppress(queue.Empty):
            for _ in self._steps:
                message, content = messages.get(timeout=REMAINING_SECONDS)
                if message is None:
                    return
                self._process(message, content, worker)

    def _process(self, message: dict, content: bytes, worker: subprocess.Popen) -> bool:
        """Store what a message contains; return True if the worker has moved to a later step."""
        step = next(((kind, message[kind]) for kind in ("cell", "exercise", "done") if kind in message), None)
        if step in self._steps[self._step_index + 1 :]:
            self._step_index, self._outcomes = self._steps.index(step), {}
            return True
        self._store_failures(message)
        kind, subject = self._current_step
        name = str(subject)
        if kind == "exercise" and name not in self._answers:
            self._store_outcomes(name, message, content)
            if name in self._answers:
                following = self._untried[self._untried.index(name) + 1 :]
                sources = self._sandbox.library_sources_before(following[0]) if following else {}
                self._send(worker, {"library_sources": sources})
        return False

    def _store_failures(self, message: dict) -> None:
        """Store the reasons why cells failed, if the message has them; numbers that no cell has are left out."""
        if isinstance(message.get("failed"), dict):
            numbers = {str(cell.number) for cell in self._cells}
            reasons = {number: str(reason)[:1000] for number, reason in message["failed"].items()}
            self._failures |= {number: reason for number, reason in reasons.items() if number in numbers}

    def _store_outcomes(self, name: str, message: dict, content: bytes) -> None:
        """Store the outcomes for one seed, or the sentence that explains why there are none.

        The answer is complete once the outcomes for all seeds are there.
        """
        if "fault" in message:
            self._answers[name] = str(message["fault"])[:1000]
        elif message.get("seed") in self._seeds:
            self._outcomes[message["seed"]] = content
        if name not in self._answers and len(self._outcomes) == len(self._seeds):
            try:
                self._answers[name] = {seed: from_bytes(content) for seed, content in self._outcomes.items()}
            except ValueError as error:
                self._answers[name] = f"What it returned could not be used: {error}"[:400]

    def _send(self, worker: subprocess.Popen, message: dict) -> None:
        assert worker.stdin is not None  # `Sandbox.start` makes a pipe
        with suppress(OSError):  # raised if the worker has ended
            worker.stdin.write(json.dumps(message).encode() + b"\n")
            worker.stdin.flush()

    def _result(self, exit_code: int, log_end: str) -> WorkerResult:
        """Return the result, in which an early end of the worker is a failure of the step that it was at.

        Args:
            exit_code: The exit code of the worker.
            log_end: The end of its error output.
        """
        kind, subject = self._current_step
        reason = self._stop_reason or f"ended the whole process (exit code {exit_code})"
        if kind == "cell":
            remaining_cells = [cell for cell in self._cells if cell.number != subject]
            return WorkerResult(self._answers, self._failures | {str(subject): reason}, remaining_cells)
        missing: Answers = {}
        if kind == "exercise":
            missing = {str(subject): f"It {reason}."}
        elif not self._sandbox.stopped.is_set():
            sentence = f"The process for this notebook did not start ({log_end.strip()[-300:]}): tell your teacher."
            if kind == "done":
                sentence = "No result came back from it."
            missing = dict.fromkeys(self._untried, sentence)
        return WorkerResult(missing | self._answers, self._failures, self._cells)


def _remove(folder: Path) -> None:
    """Remove a folder as far as possible. Folders nested deeper than Python's recursion limit stay."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def read_messages(stream, messages: queue.Queue, is_over: threading.Event) -> None:
    """Read a worker's messages into a queue, until the stream ends or `is_over` is set.

    A message is a line of JSON, followed by as many bytes as its entry "bytes" says. The end of the stream becomes the
    message None.
    """
    message: dict | None = {}
    content = b""
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
