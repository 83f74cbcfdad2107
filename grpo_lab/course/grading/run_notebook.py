"""Run a student's notebook in a worker: a process of its own, in a sandbox, with a package that lacks the answers.

`worker.py` is the program of that process, and `messages.py` has what the two send each other. This side neither runs
nor unpickles anything from a student, and only this side computes the expected values.
"""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from grpo_lab.course.checking.outcome import Outcome, from_bytes
from grpo_lab.course.exercise import Exercise, source_of
from grpo_lab.course.grading.messages import (
    UNDEFINED,
    Cell,
    FailedCells,
    NoOutcomes,
    Request,
    SeedOutcomes,
    StepStarted,
    WorkerMessage,
    json_line,
    read_worker_message,
)
from grpo_lab.course.grading.package_copy import make_copy
from grpo_lab.sandbox.isolation import (
    MAX_MEMORY,
    MAX_TASKS,
    container_kill_command,
    count_tasks,
    end_worker,
    isolated_command,
    kill_worker,
)

WORKER_CODE = "from grpo_lab.course.grading.worker import main; main()"
START_SECONDS = 180.0  # the time limit for the start of a worker, until its first step
MAX_STARTS = 12  # workers that are started for one notebook
POLL_SECONDS = 0.05  # the interval at which a worker is observed
REMAINING_SECONDS = 5.0  # the longest wait for the next message of a worker that was killed
OVER_TIME = "took longer than the time limit"
TOO_MANY_TASKS = f"started more than {MAX_TASKS} threads or processes"
NOT_REACHED = "The notebook used up its time before this exercise."


@dataclass(frozen=True)
class ExerciseRun:
    """The run of one exercise: outcomes, or the reason why there are none.

    Attributes:
        outcomes: The outcomes of the student's function, by the seed of the inputs.
        problem: A sentence that explains why there are no outcomes; "" if there are.
    """

    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_undefined(self) -> bool:
        """True if the notebook defines no function of the exercise's name."""
        return self.problem == UNDEFINED


@dataclass
class NotebookRun:
    """The run of a notebook by one or more workers: the exercises, and the cells that failed.

    Attributes:
        exercises: The run of each exercise, by its name.
        failed_cells: The reason why a cell failed, by the number of the cell.
    """

    exercises: dict[str, ExerciseRun] = field(default_factory=dict)
    failed_cells: dict[int, str] = field(default_factory=dict)


class NotebookRunner:
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
        try:
            make_copy(self._package, exercises.values())
        except BaseException:  # then `__exit__` is not called
            self._remove_folder()
            raise

    def __enter__(self) -> "NotebookRunner":
        return self

    def __exit__(self, *exception) -> None:
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._package.exists():
            for path in (self._package, *self._package.rglob("*")):
                path.chmod(0o700)
        _remove(self.folder)

    def stop(self) -> None:
        """Stop the workers that are running, and start no more."""
        self.stopped.set()

    def run(self, cells: list[Cell], seeds: list[int]) -> NotebookRun:
        """Run the cells of a notebook, and try every exercise.

        If a worker ends early, the cell or the exercise that it was at has failed, and another worker runs the rest.
        So this method returns whatever the notebook does.

        Args:
            cells: The code cells of the notebook.
            seeds: The seeds from which the inputs are drawn.
        """
        run = NotebookRun()
        deadline = time.monotonic() + START_SECONDS + 20 * self.time_limit
        for _ in range(MAX_STARTS):
            untried = [name for name in self.exercises if name not in run.exercises]
            if not untried or time.monotonic() > deadline or self.stopped.is_set():
                break
            cells = WorkerRun(self, run, cells, untried, seeds).execute(deadline)
        run.exercises = dict.fromkeys(self.exercises, ExerciseRun(problem=NOT_REACHED)) | run.exercises
        return run

    def start(self, folder: Path, log) -> tuple[subprocess.Popen, list[str]]:
        """Start a worker; return it, and the command that ends it if a signal is not enough.

        Args:
            folder: The working folder of the worker.
            log: The open file that receives its error output.
        """
        name = f"grpo-lab-{uuid.uuid4().hex}"
        command, settings = isolated_command(
            self.isolation, name, self._package, WORKER_CODE, folder, self._hidden_paths
        )
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, **settings
        )
        return worker, container_kill_command(self.isolation, name)


class WorkerRun:
    """A run of a notebook in one worker.

    The messages of the worker cannot be trusted, because the student's code may forge them. So it can only move forward
    through its steps, and each step has one result.

    Args:
        runner: The runner that starts the worker.
        run: The run of the notebook, to which the results of this worker are added.
        cells: The cells that the worker runs.
        untried: The names of the exercises that it tries, in order.
        seeds: The seeds from which the inputs are drawn.
    """

    def __init__(
        self, runner: NotebookRunner, run: NotebookRun, cells: list[Cell], untried: list[str], seeds: list[int]
    ):
        self._runner = runner
        self._run = run
        self._cells = cells
        self._untried = untried
        self._seeds = seeds
        self._last_step = len(cells) + len(untried)
        self._step = -1  # the step that the worker is at, as `messages` numbers them; -1 before the first one
        self._outcomes: dict[int, bytes] = {}  # the outcomes of the current exercise, by seed
        self._stop_reason = ""  # the reason why the grading stopped the worker

    def execute(self, deadline: float) -> list[Cell]:
        """Start the worker, process its messages, and end it.

        deadline: The time, by `time.monotonic`, at which the worker is stopped.

        Returns:
            The cells that the next worker runs: all but a cell that ended this one.
        """
        runner = self._runner
        request = Request(
            cells=self._cells,
            exercises=list(runner.exercises),
            untried=self._untried,
            seeds=self._seeds,
            case_seconds=runner.time_limit / 5,
            cpu_seconds=int(START_SECONDS + 20 * runner.time_limit),
            memory_bytes=MAX_MEMORY,
        )
        messages: queue.Queue[WorkerMessage | None] = queue.Queue(maxsize=4)
        is_over = threading.Event()
        folder = Path(tempfile.mkdtemp(dir=runner.folder))
        with tempfile.TemporaryFile(dir=runner.folder) as log:
            worker, kill_command = runner.start(folder, log)
            threading.Thread(target=read_messages, args=(worker.stdout, messages, is_over), daemon=True).start()
            try:
                _send(worker, request.to_line())
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
        return self._conclude(worker.returncode, log_end)

    @property
    def _current_exercise(self) -> str | None:
        """The name of the exercise that the worker tries; None in any other step."""
        index = self._step - len(self._cells)
        return self._untried[index] if 0 <= index < len(self._untried) else None

    def _process_messages(
        self, worker: subprocess.Popen, messages: queue.Queue[WorkerMessage | None], deadline: float
    ) -> None:
        """Process messages until the worker is done, has ended, or exceeds a limit.

        Each step has a deadline of its own besides that of the worker.
        """
        step_deadline = time.monotonic() + START_SECONDS
        while self._step < self._last_step:
            if time.monotonic() > min(step_deadline, deadline) or self._runner.stopped.is_set():
                self._stop_reason = OVER_TIME
            elif count_tasks(worker.pid) > MAX_TASKS:
                self._stop_reason = TOO_MANY_TASKS
            if self._stop_reason:
                return
            try:
                message = messages.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if message is None:
                return
            step_before = self._step
            self._process(message, worker)
            if self._step > step_before:
                step_deadline = time.monotonic() + self._runner.time_limit

    def _process_remaining_messages(
        self, worker: subprocess.Popen, messages: queue.Queue[WorkerMessage | None]
    ) -> None:
        """Process what a worker had sent before it was killed.

        A worker announces a cell before it runs it. So the cell that started the threads is known, even if this process
        counted the threads before it read the announcement.
        """
        with suppress(queue.Empty):
            for _ in range(self._last_step + 1):
                message = messages.get(timeout=REMAINING_SECONDS)
                if message is None:
                    return
                self._process(message, worker)

    def _process(self, message: WorkerMessage, worker: subprocess.Popen) -> None:
        """Store what a message contains, or move to a later step. A message that does not fit the step is ignored."""
        exercise = self._current_exercise
        match message:
            case StepStarted(step):
                if self._step < step <= self._last_step:
                    self._step, self._outcomes = step, {}
                    if self._current_exercise:
                        self._send_library_sources(worker, self._current_exercise)
            case FailedCells(reasons):
                numbers = {cell.number for cell in self._cells}
                self._run.failed_cells |= {number: reason for number, reason in reasons.items() if number in numbers}
            case SeedOutcomes(seed, content):
                if exercise and exercise not in self._run.exercises and seed in self._seeds:
                    self._outcomes[seed] = content
                    if len(self._outcomes) == len(self._seeds):
                        self._run.exercises[exercise] = self._read_outcomes()
            case NoOutcomes(reason):
                if exercise:
                    self._run.exercises.setdefault(exercise, ExerciseRun(problem=reason))

    def _send_library_sources(self, worker: subprocess.Popen, exercise: str) -> None:
        """Send the library's sources of the exercises before this one."""
        names = list(self._runner.exercises)
        earlier = names[: names.index(exercise)]
        _send(worker, json_line({name: source_of(self._runner.exercises[name].function) for name in earlier}))

    def _read_outcomes(self) -> ExerciseRun:
        try:
            return ExerciseRun({seed: from_bytes(content) for seed, content in self._outcomes.items()})
        except ValueError as error:
            return ExerciseRun(problem=f"What it returned could not be used: {error}"[:400])

    def _conclude(self, exit_code: int, log_end: str) -> list[Cell]:
        """Record an early end of the worker as a failure of the step that it was at, and return the remaining cells.

        Args:
            exit_code: The exit code of the worker.
            log_end: The end of its error output.
        """
        reason = self._stop_reason or f"ended the whole process (exit code {exit_code})"
        if 0 <= self._step < len(self._cells):
            self._run.failed_cells[self._cells[self._step].number] = reason
            return [cell for step, cell in enumerate(self._cells) if step != self._step]
        if self._current_exercise:
            missing = {self._current_exercise: f"It {reason}."}
        elif self._runner.stopped.is_set():
            missing = {}
        elif self._step == self._last_step:
            missing = dict.fromkeys(self._untried, "No result came back from it.")
        else:
            sentence = f"The process for this notebook did not start ({log_end.strip()[-300:]}): tell your teacher."
            missing = dict.fromkeys(self._untried, sentence)
        for name, problem in missing.items():
            self._run.exercises.setdefault(name, ExerciseRun(problem=problem))
        return self._cells


def _send(worker: subprocess.Popen, line: bytes) -> None:
    assert worker.stdin is not None  # `NotebookRunner.start` makes a pipe
    with suppress(OSError):  # raised if the worker has ended
        worker.stdin.write(line)
        worker.stdin.flush()


def _remove(folder: Path) -> None:
    """Remove a folder as far as possible. Folders nested deeper than Python's recursion limit stay."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def read_messages(stream: BinaryIO, messages: queue.Queue[WorkerMessage | None], is_over: threading.Event) -> None:
    """Read a worker's messages into a queue, until the stream ends or `is_over` is set.

    The end of the stream becomes the message None.
    """
    while not is_over.is_set():
        try:
            message = read_worker_message(stream)
        except (ValueError, OSError, RecursionError):
            return  # later messages cannot be read either; the worker is stopped when its time is over
        while not is_over.is_set():
            with suppress(queue.Full):
                messages.put(message, timeout=0.5)
                break
        if message is None:
            return
