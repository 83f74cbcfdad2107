"""Messages of a worker arrive as they were sent, and forged ones are read within limits."""

import io
import json

import pytest

from grpo_lab.course.grading.messages import (
    MAX_REASON_LENGTH,
    Cell,
    FailedCells,
    NoOutcomes,
    Request,
    SeedOutcomes,
    StepStarted,
    read_worker_message,
    write_worker_message,
)

MESSAGES = (
    StepStarted(4),
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


def test_a_request_arrives_as_it_was_sent():
    request = Request([Cell(1, "x = 1", "kl_estimate")], ["kl_estimate"], ["kl_estimate"], [0, 7], 6.0, 60, 2**30)
    assert Request.from_line(request.to_line()) == request


def read(entries: object):
    return read_worker_message(io.BytesIO(json.dumps(entries).encode() + b"\n"))


def test_forged_worker_messages_are_read_within_limits():
    assert read({"reasons": {"4": ["x"], "9" * 5000: "x", "four": "x"}}) == FailedCells({4: "['x']"})
    assert read({"reason": "x" * 10**5}) == NoOutcomes("x" * MAX_REASON_LENGTH)
    too_long = {"seed": 0, "num_bytes": 10**12}
    for entries in ({"points": 18}, {"reasons": 4}, {"step": []}, {"reason": ["x"]}, too_long, [], 3, None):
        with pytest.raises(ValueError, match="a message of a worker was expected"):
            read(entries)
