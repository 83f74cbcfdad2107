"""The messages between the grading and a worker, the process in the sandbox that runs one notebook.

    grading -> worker    a `Request`; after each announcement of an exercise, the library's sources of the earlier ones
    worker -> grading    a `StepStarted` before each step; after all cells `FailedCells`; and for each exercise
                         `SeedOutcomes` for each seed, or `NoOutcomes`

The steps of a worker are numbered from 0: first its cells, then the exercises that it tries, and last the end. A
message is a line of JSON. Outcomes are bytes that follow their line. The student's code may forge the messages of a
worker, so they are read within limits, and nothing in them is executed.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from grpo_lab.base.user_code import functions_of_cell
from grpo_lab.course.checking.outcome import MAX_CONTENT_BYTES

MAX_LINE_BYTES = 1_000_000  # longest line from a worker
MAX_REASON_LENGTH = 1_000  # characters of a reason from a worker; the rest is cut off
UNDEFINED = "The notebook defines no function of this name."  # the reason of `NoOutcomes` for such an exercise


@dataclass(frozen=True)
class Cell:
    """A code cell that the grading runs.

    Attributes:
        number: The position among all cells of the notebook, from 1.
        source: The code.
        exercise: The name of the exercise for which the cell was released; "" for any other cell.
    """

    number: int
    source: str
    exercise: str = ""

    @property
    def defines(self) -> list[str]:
        """The names of the functions at the top level of the cell."""
        return [function.name for function in functions_of_cell(self.source)]


@dataclass(frozen=True)
class Request:
    """The first message to a worker: what it runs, and its limits.

    Attributes:
        cells: The cells to run.
        exercises: The names of all exercises of the assignment, in order.
        untried: The names of the exercises to try, in order.
        seeds: The seeds from which the inputs are drawn.
        case_seconds: The CPU time that each case may take.
        cpu_seconds: The CPU time that the worker may take.
        memory_bytes: The memory that the worker may take, besides what it has before the first cell.
    """

    cells: list[Cell]
    exercises: list[str]
    untried: list[str]
    seeds: list[int]
    case_seconds: float
    cpu_seconds: int
    memory_bytes: int

    def to_line(self) -> bytes:
        return json_line(asdict(self))

    @classmethod
    def from_line(cls, line: bytes) -> "Request":
        entries = json.loads(line)
        return cls(**entries | {"cells": [Cell(**cell) for cell in entries["cells"]]})


@dataclass(frozen=True)
class StepStarted:
    """The worker begins the step of this number."""

    step: int


@dataclass(frozen=True)
class FailedCells:
    """The reasons why cells failed, by the number of the cell."""

    reasons: dict[int, str]


@dataclass(frozen=True)
class SeedOutcomes:
    """The outcomes of the current exercise on the inputs of one seed, as `to_bytes` writes them."""

    seed: int
    content: bytes


@dataclass(frozen=True)
class NoOutcomes:
    """The current exercise has no outcomes, for a reason that is a sentence."""

    reason: str


WorkerMessage = StepStarted | FailedCells | SeedOutcomes | NoOutcomes


def json_line(entries: dict[str, Any]) -> bytes:
    return json.dumps(entries).encode() + b"\n"


def write_worker_message(stream: BinaryIO, message: WorkerMessage) -> None:
    entries = asdict(message)
    content = entries.pop("content", b"")
    stream.write(json_line(entries | {"num_bytes": len(content)}) + content)
    stream.flush()


def read_worker_message(stream: BinaryIO) -> WorkerMessage | None:
    """Read one message of a worker; return None at the end of the stream.

    Raises:
        ValueError: If the line is not a message.
        RecursionError: If the JSON is nested too deeply.
    """
    line = stream.readline(MAX_LINE_BYTES)
    if not line:
        return None
    match json.loads(line):
        case {"step": int(step)}:
            return StepStarted(step)
        case {"reasons": dict(reasons)}:
            numbers = [key for key in reasons if key.isdecimal() and len(key) < 10]
            return FailedCells({int(number): str(reasons[number])[:MAX_REASON_LENGTH] for number in numbers})
        case {"seed": int(seed), "num_bytes": int(size)} if 0 <= size <= MAX_CONTENT_BYTES:
            return SeedOutcomes(seed, stream.read(size))
        case {"reason": str(reason)}:
            return NoOutcomes(reason[:MAX_REASON_LENGTH])
    raise ValueError("a message of a worker was expected")
