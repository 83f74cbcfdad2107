"""The exercises of notebook 10."""

import torch

from grpo_lab.course.exercise import (
    Draws,
    Exercise,
    drawn_case,
    drawn_stability_case,
    handwritten_case,
    stability_case,
    wrong_function,
    wrong_lines,
)
from grpo_lab.toys.asynchronous import completion_staleness, straggler_bubble


def lengths(*tokens: int):
    return torch.tensor(tokens)


def _lengths_and_slots(draws: Draws, count, slots, longest=40):
    return 1 + draws.integers(longest, count), slots


STRAGGLER_BUBBLE = Exercise(
    function=straggler_bubble,
    cases=(
        handwritten_case("two slots, 4 tokens and 1", lengths(4, 1), 2),
        handwritten_case("the free slot takes the next", lengths(3, 1, 2), 2),
        handwritten_case("a long answer comes last", lengths(1, 1, 1, 9), 3),
        handwritten_case("more slots than answers", lengths(4, 4), 3),
        handwritten_case("one slot never waits", lengths(5, 1, 7), 1),
        drawn_case("a slot each", lambda draws: _lengths_and_slots(draws, count=9, slots=9)),
        drawn_case("few slots", lambda draws: _lengths_and_slots(draws, count=23, slots=4)),
        stability_case("one answer of a million tokens", lengths(*[1] * 50, 10**6), 51),
        drawn_stability_case(
            "a thousand answers, 64 slots",
            lambda draws: _lengths_and_slots(draws, count=1000, slots=64, longest=16_384),
        ),
    ),
    mistakes=(
        wrong_lines("busy-fraction", {"10.1": "bubble = int(lengths.sum()) / (slots * max(finish_times))"}),
        wrong_lines("the-longest-answer", {"10.1": "bubble = 1 - int(lengths.sum()) / (slots * int(lengths.max()))"}),
        wrong_lines(
            "in-turn",
            {
                "tolist()": "for i, length in enumerate(lengths.tolist()):",
                "10.2": "finish_times[i % slots] += length",
                "heappush()": "pass",
            },
        ),
        wrong_function(
            "in-batches",
            lambda n, slots: 1 - float(n.sum()) / (slots * sum(int(part.max()) for part in n.split(slots))),
        ),
        wrong_function(
            "idle-slots-left-out", lambda lengths, slots: straggler_bubble(lengths, min(slots, len(lengths)))
        ),
        wrong_lines("longest-first", {"tolist()": "for length in sorted(lengths.tolist(), reverse=True):"}),
    ),
)


def _queue(draws: Draws, count, slots, batch, group=1, longest=40):
    return 1 + draws.integers(longest, count), slots, batch, group


COMPLETION_STALENESS = Exercise(
    function=completion_staleness,
    cases=(
        handwritten_case("two slots, an update for each two", lengths(3, 1, 1, 1), 2, 2),
        handwritten_case("one slot, an update for each answer: always fresh", lengths(5, 1, 7), 1, 1),
        handwritten_case("two slots, an update for each answer", lengths(2, 3, 2, 3), 2, 1),
        handwritten_case("one long answer, others pass it", lengths(9, 1, 1, 1, 1, 1, 1), 2, 2),
        handwritten_case("all end together", lengths(4, 4, 4, 4, 4, 4, 4, 4), 4, 2),
        handwritten_case("a group waits for its long answer", lengths(9, 1, 1, 1, 1, 1), 2, 2, 2),
        drawn_case("as many slots as an update takes", lambda draws: _queue(draws, count=30, slots=6, batch=6)),
        drawn_case("four times as many", lambda draws: _queue(draws, count=60, slots=12, batch=3)),
        drawn_case("groups of four", lambda draws: _queue(draws, count=60, slots=6, batch=8, group=4)),
        stability_case("one answer of a million tokens", lengths(10**6, *[1] * 50), 2, 10),
        drawn_stability_case(
            "a thousand answers", lambda draws: _queue(draws, count=1000, slots=64, batch=16, group=8, longest=16_384)
        ),
    ),
    mistakes=(
        wrong_lines("in-the-order-given", {"10.7": "staleness = torch.arange(len(end)) // batch - version"}),
        wrong_lines(
            "difference-first",
            {
                "10.6": "version = torch.searchsorted(end[order], begin, right=True)",
                "10.7": "staleness = (order.argsort() - version) // batch",
            },
        ),
        wrong_lines("older-weights-at-the-start", {"10.6": "version = torch.searchsorted(end[order], begin) // batch"}),
        wrong_lines("groups-not-waited-for", {"repeat_interleave()": "end = begin + lengths"}),
        wrong_lines("version-forgotten", {"10.7": "staleness = order.argsort() // batch"}),
        wrong_lines("ties-not-ordered", {"10.7": "staleness = torch.searchsorted(end[order], end) // batch - version"}),
        wrong_lines(
            "counts-itself", {"10.7": "staleness = torch.searchsorted(end[order], end, right=True) // batch - version"}
        ),
    ),
)
