from grpo_lab.course.exercise import Dice, Exercise, Misconception, drawn, extreme, given
from grpo_lab.toys.scale import weight_sync_seconds


def _sampler(d: Dice) -> tuple:
    parameters, links, gigabits, size = (1 + int(x) for x in d.integers(9, 4))
    return 1e8 * parameters, links, 50.0 * gigabits, size


EXERCISE = Exercise(
    function=weight_sync_seconds,
    points=2,
    minutes=10,
    difficulty=1,
    task="After each update every sampler needs new weights. How many bytes are that, and how long do they take "
    "at least?",
    hints=(
        "How many bytes has a number in bf16? What else of a training must a sampler have?",
        "Networks are sold in bits, memory in bytes; giga is 10^9 here.",
    ),
    cases=(
        given("8 billion numbers of 2 bytes, one link of 128 Gb/s", 8e9, 1, 128.0),
        given("the same over four links", 8e9, 4, 128.0),
        given("a number of one byte each", 8e9, 4, 128.0, 1),
        given("a tiny model over a slow line", 460_000.0, 1, 0.01, 4),
        drawn("other samplers", _sampler),
        extreme("a million times a million numbers", 1e12, 3, 400.0),
    ),
    misconceptions={
        "bits-for-bytes": Misconception(
            "A link of 400 Gb/s carries 400 billion *bits* a second. You send bytes.",
            {"10.9": "seconds = size / (1e9 * gigabits * links)"},
        ),
        "everything-adam-has": Misconception(
            "Gradients and moments stay with the trainer. A sampler needs the weights alone.",
            {"10.8": "size = parameters * 16"},
        ),
        "one-link": Misconception(
            "You send everything over one link. Each card of the sampler has its own, and needs a part only.",
            {"10.9": "seconds = 8 * size / (1e9 * gigabits)"},
        ),
        "two-to-the-thirty": Misconception(
            "You count giga as 2^30. That is usual for memory; for networks it is 10^9.",
            {"10.9": "seconds = 8 * size / (2 ** 30 * gigabits * links)"},
        ),
    },
)
