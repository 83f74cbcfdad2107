"""Messages of a worker arrive as they were sent, and forged ones are read within limits."""

import io
import json

import pytest

from grpo_lab.course.grading.messages import (
    MAX_REASON_LENGTH,
    Cell,
    CellStep,
    DoneStep,
    ExerciseStep,
    FailedCells,
    ForgedMessage,
    LibrarySources,
    NoOutcomes,
    Request,
    SeedOutcomes,
    StepStarted,
    read_worker_message,
    write_worker_message,
)

MESSAGES = (
    StepStarted(CellStep(4)),
    StepStarted(ExerciseStep("kl_estimate")),
    StepStarted(DoneStep()),
    FailedCells({4: "NameError", 11: "SystemExit: 0"}),
    SeedOutcomes(7, b"bytes\nof outcomes"),
    NoOutcomes("It took too long."),
)


def test_worker_messages_arrive_as_they_were_sent():
    stream = io.BytesIO()
    for message in MESSAGES:
        write_worker_message(stream, message)
    stream.seek(0)
    assert [read_worker_message(stream) for _ in MESSAGES] == list(MESSAGES)
    assert read_worker_message(stream) is None, "the end of the stream"


def test_messages_to_a_worker_arrive_as_they_were_sent():
    request = Request([Cell(1, "x = 1", "kl_estimate")], ["kl_estimate"], ["kl_estimate"], [0, 7], {}, 6.0, 60, 2**30)
    assert Request.from_line(request.to_line()) == request
    sources = LibrarySources({"kl_estimate": "def kl_estimate(): ..."})
    assert LibrarySources.from_line(sources.to_line()) == sources


def read(entries: object):
    return read_worker_message(io.BytesIO(json.dumps(entries).encode() + b"\n"))


def test_forged_worker_messages_are_read_within_limits():
    assert read({"points": 18, "status": "right"}) == read({"failed": 4}) == ForgedMessage()
    assert read({"cell": []}) == StepStarted(CellStep([]))  # fits no step of a worker
    assert read({"failed": {"4": ["x"], "9" * 5000: "x", "four": "x"}}) == FailedCells({4: "['x']"})
    assert read({"fault": "x" * 10**5}) == NoOutcomes("x" * MAX_REASON_LENGTH)
    assert read({"seed": 0, "bytes": 10**12}) == SeedOutcomes(0, b"")
    for entries in ([], 3, None):
        with pytest.raises(ValueError, match="a dictionary was expected"):
            read(entries)
