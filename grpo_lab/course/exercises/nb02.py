"""The exercises of notebook 02."""

import torch

from grpo_lab.advantages import group_advantages, rloo_advantages
from grpo_lab.course.exercise import (
    Exercise,
    drawn_case,
    drawn_stability_case,
    f64,
    handwritten_case,
    stability_case,
    wrong_function,
    wrong_lines,
)

EASY_AND_HARD = f64([[11.0, 9.0], [0.0, 2.0]])
# In float32 the mean of these three equal rewards is rounded to another number, in any order of summation.
ROUNDED = torch.tensor([[1_000_000.125] * 3])


def no_spread_below_a_thousandth(rewards, scale="group", ddof=1, eps=1e-4):
    advantages = group_advantages(rewards, scale, ddof, eps)
    std = rewards.std(correction=ddof) if scale == "batch" else rewards.std(-1, keepdim=True, correction=ddof)
    return advantages if scale == "none" else torch.where(std < 1e-3, 0, advantages)


GROUP_ADVANTAGES = Exercise(
    function=group_advantages,
    cases=(
        handwritten_case("one right, one wrong, centred only", f64([[1.0, 0.0]]), scale="none"),
        handwritten_case("by hand: 0 and 2, population, eps 1", f64([[0.0, 2.0]]), ddof=0, eps=1.0),
        handwritten_case("equal rewards", f64([[1.0, 1.0, 1.0]])),
        handwritten_case("an easy prompt and a hard one", EASY_AND_HARD),
        handwritten_case("an easy prompt and a hard one, one spread for both", EASY_AND_HARD, scale="batch"),
        handwritten_case("one right of sixteen", f64([[1.0] + [0.0] * 15])),
        handwritten_case("rewards that differ by a ten-thousandth", f64([[0.0, 1e-4, 0.0], [1e-4, 3e-4, 0.0]])),
        handwritten_case("rewards that differ by a millionth", f64([[0.0, 1e-6], [3e-6, 1e-6]]), eps=1e-8),
        handwritten_case("hardly any spread in the batch", f64([[0.0, 1e-6], [3e-6, 1e-6]]), scale="batch"),
        drawn_case("as many prompts as completions", lambda draws: (draws.normal(3, 3),)),
        drawn_case(
            "one spread for the batch, population", lambda draws: (5 + draws.normal(3, 2),), scale="batch", ddof=0
        ),
        drawn_case("centred only, larger", lambda draws: (draws.normal(2, 6),), scale="none"),
        stability_case("equal rewards in float32, far from zero", ROUNDED),
        stability_case("equal rewards in float32, centred only", ROUNDED, scale="none"),
        stability_case("equal rewards in float32, one spread", torch.cat([ROUNDED, -ROUNDED]), scale="batch", ddof=0),
        drawn_stability_case("a million from zero", lambda draws: (1e6 + draws.normal(3, 40),), eps=1e-6),
    ),
    mistakes=(
        wrong_lines(
            "std-no-eps",
            {"2.9": "eps, centred = 0, from_first - reduce(from_first, 'P G -> P 1', 'mean')"},
            equation="2.7",
        ),
        wrong_lines("residue-as-spread", {"2.8": "from_first = rewards"}),
        wrong_lines("std-over-batch", {"2.10": "std = (rewards - rewards[0, 0]).std(correction=ddof)"}),
        wrong_lines(
            "no-centre",
            {"2.9": "centred = rewards", "2.10": "std = from_first.std(-1, keepdim=True, correction=ddof)"},
            equation="2.9",
        ),
        wrong_lines(
            "one-mean-for-all",
            {
                "2.9": "centred = rewards - rewards.mean()",
                "2.10": "std = from_first.std(-1, keepdim=True, correction=ddof)",
            },
            equation="2.9",
        ),
        wrong_lines(
            "group-mixed",
            {
                "2.8": "from_first = rewards - rewards[:1]",
                "2.9": "centred = from_first - reduce(from_first, 'P G -> 1 G', 'mean')",
                "2.10": "std = (centred.square().sum(0, keepdim=True) / (rewards.shape[0] - ddof)).sqrt()",
            },
            equation="2.9",
        ),
        wrong_lines(
            "mean-over-prompts",
            {
                "2.9": "centred = rewards - rewards.mean(0, keepdim=True)",
                "2.10": "std = from_first.std(-1, keepdim=True, correction=ddof)",
            },
            equation="2.9",
        ),
        wrong_lines(
            "variance-as-std",
            {
                "std()": "std = (rewards - rewards[0, 0]).var(correction=ddof)",
                "2.10": "std = centred.square().sum(-1, keepdim=True) / (rewards.shape[1] - ddof)",
            },
        ),
        wrong_lines("std-over-prompts", {"2.10": "std = rewards.std(0, keepdim=True, correction=ddof)"}),
        wrong_lines(
            "ddof-swapped",
            {
                "std()": "std = (rewards - rewards[0, 0]).std(correction=1 - ddof)",
                "2.10": "std = (centred.square().sum(-1, keepdim=True) / (rewards.shape[1] - 1 + ddof)).sqrt()",
            },
        ),
        wrong_lines("spread-of-the-centred", {"std()": "std = centred.std(correction=ddof)"}, equation="2.10"),
        wrong_lines(
            "eps-under-the-root",
            {
                "std()": "std = ((rewards - rewards[0, 0]).var(correction=ddof) + eps).sqrt() - eps",
                "2.10": "std = (centred.square().sum(-1, keepdim=True) / (rewards.shape[1] - ddof) + eps).sqrt() - eps",
            },
            equation="2.7",
        ),
        wrong_function("small-spread-as-none", no_spread_below_a_thousandth, equation="2.7"),
        wrong_lines(
            "population-std",
            {
                "std()": "std = (rewards - rewards[0, 0]).std(correction=0)",
                "2.10": "std = (centred.square().sum(-1, keepdim=True) / rewards.shape[1]).sqrt()",
            },
        ),
        wrong_lines(
            "keepdim-forgotten",
            {
                "2.9": "centred = from_first - from_first.mean(-1)",
                "2.10": "std = centred.std(-1, correction=ddof)",
            },
        ),
        wrong_lines("std-without-keepdim", {"2.10": "std = centred.std(-1, correction=ddof)"}),
        wrong_lines("spread-of-the-shifted", {"std()": "std = from_first.std(correction=ddof)"}),
    ),
)


RLOO_ADVANTAGES = Exercise(
    function=rloo_advantages,
    cases=(
        handwritten_case("one right, one wrong", f64([[1.0, 0.0]])),
        handwritten_case("one right of three", f64([[3.0, 0.0, 0.0]])),
        handwritten_case("equal rewards", f64([[2.0, 2.0, 2.0]])),
        handwritten_case("an easy prompt and a hard one", f64([[11.0, 9.0], [0.0, 2.0]])),
        drawn_case("as many prompts as completions", lambda draws: (draws.normal(3, 3),)),
        drawn_case("five completions", lambda draws: (draws.normal(2, 5),)),
        drawn_stability_case("a million from zero", lambda draws: (1e6 + draws.normal(3, 40),)),
    ),
    mistakes=(
        wrong_lines(
            "leave-one-out-includes-itself", {"2.4": "advantages = from_first - from_first.mean(-1, keepdim=True)"}
        ),
        wrong_lines(
            "others-divided-by-all",
            {"2.4": "advantages = rewards - (rewards.sum(-1, keepdim=True) - rewards) / rewards.shape[1]"},
        ),
        wrong_lines("no-centre", {"2.4": "advantages = rewards"}),
        wrong_lines(
            "group-mixed",
            {"2.4": "advantages = rewards - (rewards.sum(0, keepdim=True) - rewards) / (rewards.shape[1] - 1)"},
        ),
        wrong_lines(
            "prompts-as-others",
            {"2.4": "advantages = rewards - (rewards.sum(0, keepdim=True) - rewards) / (rewards.shape[0] - 1)"},
        ),
        wrong_lines(
            "others-alone", {"2.4": "advantages = (rewards.sum(-1, keepdim=True) - rewards) / (rewards.shape[1] - 1)"}
        ),
        wrong_lines(
            "divided-by-std",
            {
                "2.4": "advantages = from_first - (from_first.sum(-1, keepdim=True) - from_first) / "
                "(from_first.shape[1] - 1)\nadvantages = advantages / (from_first.std(-1, keepdim=True) + 0.0001)"
            },
        ),
        wrong_lines(
            "keepdim-forgotten", {"2.4": "advantages = rewards - (rewards.sum(-1) - rewards) / (rewards.shape[1] - 1)"}
        ),
    ),
)
