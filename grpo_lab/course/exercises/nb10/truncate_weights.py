import math

import torch

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.toys.scale import truncate_weights


def _weights(d, B, T):
    return d.normal(B, T).exp()


SOME = f64([[0.2, 1.0, 2.9, 3.0, 7.0]])

EXERCISE = Exercise(
    function=truncate_weights,
    points=2,
    minutes=10,
    difficulty=1,
    task="Cut importance weights, so that one token cannot outvote its batch: down to the cap, or leave out what is "
    "above it. TRL has both.",
    hints=(
        "Small weights are harmless. Which side has to be cut?",
        "`mask` leaves a token out: what is its weight then? And what of a weight that is exactly the cap?",
    ),
    cases=(
        given("below, at and above the cap", SOME),
        given("below, at and above the cap, left out", SOME, 3.0, "mask"),
        given("one weight a completion, left out", f64([[0.5], [4.0]]), 2.0, "mask"),
        drawn("many weights", lambda d: (_weights(d, 4, 6), 1.5)),
        drawn("many weights, left out", lambda d: (_weights(d, 4, 6), 1.5, "mask")),
        extreme("no cap", f64([[1e30, 1e-30]]), math.inf),
        extreme("infinite weights", f64([[math.inf, 1.0]]), 3.0),
        extreme("infinite weights, left out", f64([[math.inf, 1.0]]), 3.0, "mask"),
        at_scale("float32", lambda d: (100 * torch.rand(50, 40, generator=d.generator), 20.0, "mask")),
    ),
    misconceptions={
        "clipped-on-both-sides": Misconception(
            "You raise the small weights, too. They do no harm: a token that the trainer would hardly write should "
            "hardly count.",
            {"10.4": "return weights.clamp(1 / cap, cap)"},
        ),
        "cut-from-below": Misconception(
            "Your weights are *at least* the cap. The large ones are the trouble.",
            {"10.4": "return weights.clamp(min=cap)"},
        ),
        "masked-is-one": Misconception(
            "What is above the cap gets the weight 1 from you: it counts as if it were fresh. Left out means 0.",
            {"10.5": "return torch.where(weights <= cap, weights, 1)"},
        ),
        "cap-left-out": Misconception(
            "A weight that is exactly the cap is not above it.",
            {"10.5": "return torch.where(weights < cap, weights, 0)"},
        ),
    },
)
