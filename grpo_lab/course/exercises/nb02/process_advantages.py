import torch

from grpo_lab.advantages import process_advantages
from grpo_lab.course.exercise import NAN, Exercise, Misconception, at_scale, drawn, extreme, f64, given, padded


def over_padding(step_rewards, step_mask, eps=1e-4):
    rewards = torch.where(step_mask, step_rewards, 0)
    centred = torch.where(step_mask, rewards - rewards.mean((1, 2), keepdim=True), 0)
    return (centred / (rewards.std((1, 2), keepdim=True) + eps)).flip(-1).cumsum(-1).flip(-1)


def _steps(d, P, G, T):
    """Every completion ends with a step, and has others before."""
    mask = d.integers(2, P, G, T) == 0
    mask[..., -1] = True
    return mask


def _sparse(d, P, G, T):
    """Steps with holes between them; the last completion of each prompt has none, nor has the last prompt."""
    mask = d.integers(5, P, G, T) == 0
    mask[:, -1] = False
    mask[-1] = False
    return padded(1e6 + d.normal(P, G, T), mask), mask


EXERCISE = Exercise(
    function=process_advantages,
    points=6,
    minutes=30,
    difficulty=3,
    task="Give every token the normalised rewards of the steps that end at it or after it. Credit is then finer than "
    "one number for a whole response.",
    hints=(
        "Two halves: first normalise the step rewards of a group, wherever they stand; then hand them to the tokens.",
        "All sums of the first half run over completions *and* positions, and count only where the mask is True. "
        "Elsewhere anything may stand, even NaN, so choose instead of multiplying.",
        "Subtracting the mean makes something other than zero of the positions without a step. What must they hold "
        "before you square and add?",
        "'At it or after it' is a cumulative sum from the far end. There are two flips in it.",
    ),
    cases=(
        given(
            "two completions, three steps",
            f64([[[0.0, 1.0, 0.0, 3.0], [0.0, 2.0, 7.0, 7.0]]]),
            torch.tensor([[[False, True, False, True], [False, True, False, False]]]),
        ),
        given("two steps", f64([[[1.0, 0.0], [0.0, 3.0]]]), torch.tensor([[[True, False], [False, True]]])),
        given("equal steps", f64([[[1.0, 1.0], [1.0, 1.0]]]), torch.ones(1, 2, 2, dtype=torch.bool)),
        drawn("one completion, steps below zero", lambda d: (d.normal(3, 1, 6) - 5, _steps(d, 3, 1, 6))),
        drawn("eps 2", lambda d: (d.normal(2, 3, 4), _steps(d, 2, 3, 4)), eps=2.0),
        drawn("as many of everything", lambda d: (d.normal(3, 3, 3), _steps(d, 3, 3, 3))),
        extreme("a single step", f64([[[4.0, 0.0], [0.0, 0.0]]]), torch.tensor([[[True, False], [False, False]]])),
        extreme("no step at all", f64([[[1.0, 2.0], [3.0, 4.0]]]), torch.zeros(1, 2, 2, dtype=torch.bool)),
        extreme(
            "NaN where no step ends",
            f64([[[NAN, 1.0, NAN], [0.0, NAN, 2.0]]]),
            torch.tensor([[[False, True, False], [True, False, True]]]),
        ),
        extreme(
            "equal steps in float32, far from zero",
            torch.full((2, 2, 3), 1_000_000.125),
            torch.tensor([[[True, False, True], [False, True, False]], [[True] * 3] * 2]),
        ),
        at_scale("a million from zero, NaN where no step ends", lambda d: _sparse(d, 3, 4, 50)),
    ),
    misconceptions={
        "credits-the-past": Misconception(
            "Your sum runs forwards: a token is credited with the steps *before* it, which it cannot have caused. "
            "From which end has the sum to run?",
            {"2.12": "advantages = scaled.cumsum(-1)"},
        ),
        "not-accumulated": Misconception(
            "Only the last token of each step gets credit. The tokens that led there did the work: what happens "
            "between Eq. (2.11) and the result?",
            {"2.12": "advantages = scaled"},
        ),
        "mean-over-padding": Misconception(
            "Mean and spread run over all positions, also those at which no step ends. Longer responses then have "
            "smaller means. How many numbers does a group really have to average?",
            wrong=over_padding,
            equation="2.8",
        ),
        "residue-as-spread": Misconception(
            "Right on paper, but in floating point the mean of equal numbers need not be that number. What is left "
            "over is then all the spread there is: divided by itself, it pushes equal steps apart. What does Eq. (2.7) "
            "subtract beforehand?",
            {"2.7": "from_least = torch.where(step_mask, step_rewards, 0)"},
        ),
        "zero-times-nan": Misconception(
            "NaN: you multiply by the mask, and where no step ends anything may stand. What is zero times NaN? Look "
            "for an operation that *chooses* between two values.",
            {"2.7": "from_least = step_rewards * step_mask"},
            equation="2.9",
        ),
    },
)
