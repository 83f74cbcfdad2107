"""The exercise process_advantages: wrong answers, as people write them, then what is said about each."""

import torch

from grpo_lab.advantages import process_advantages
from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn, extreme, f64, given, padded, refused

NAN, INF = float("nan"), float("inf")
not_accumulated = changed(process_advantages, ("return advantages", "return scaled"))


def over_padding(step_rewards, step_mask, eps=1e-4):
    rewards = torch.where(step_mask, step_rewards, 0)
    centred = torch.where(step_mask, rewards - rewards.mean((1, 2), keepdim=True), 0)
    return (centred / (rewards.std((1, 2), keepdim=True) + eps)).flip(-1).cumsum(-1).flip(-1)


def each_alone(step_rewards, step_mask, eps=1e-4):
    alone = (table.flatten(0, 1)[:, None] for table in (step_rewards, step_mask))
    return process_advantages(*alone, eps).view_as(step_rewards)


def by_position(step_rewards, step_mask, eps=1e-4):
    apart = (table.mT.flatten(0, 1)[..., None] for table in (step_rewards, step_mask))
    scaled = not_accumulated(*apart, eps).view_as(step_rewards.mT).mT
    return scaled.flip(-1).cumsum(-1).flip(-1)


def over_batch(step_rewards, step_mask, eps=1e-4):
    together = (table.flatten(0, 1)[None] for table in (step_rewards, step_mask))
    return process_advantages(*together, eps).view_as(step_rewards)


def summed_first(step_rewards, step_mask, eps=1e-4):
    returns = torch.where(step_mask, step_rewards, 0).flip(-1).cumsum(-1).flip(-1)
    return not_accumulated(returns, torch.ones_like(step_mask), eps)


def _sparse(d, P, G, T, filling=NAN):
    """Steps with holes between them; the last completion of each prompt has none, nor has the last prompt."""
    mask = d.integers(5, P, G, T) == 0
    mask[:, -1] = False
    mask[-1] = False
    return padded(2 + d.normal(P, G, T), mask, filling), mask


TWO = f64([[[1.0, 0.0], [0.0, 3.0]]])
AT_ENDS = torch.tensor([[[True, False], [False, True]]])

EXERCISE = Exercise(
    function=process_advantages,
    notebook="02",
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
        given(
            "one step each, at the end",
            f64([[[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]]),
            torch.tensor([[[False, True]] * 3]),
        ),
        given("two steps", TWO, AT_ENDS),
        given("equal steps", f64([[[1.0, 1.0], [1.0, 1.0]]]), torch.ones(1, 2, 2, dtype=torch.bool)),
        given("no step at all", f64([[[1.0, 2.0], [3.0, 4.0]]]), torch.zeros(1, 2, 2, dtype=torch.bool)),
        given(
            "a single step, right at the start",
            f64([[[4.0, 0.0], [0.0, 0.0]]]),
            torch.tensor([[[True, False], [False, False]]]),
        ),
        given(
            "equal steps beside unequal ones",
            f64([[[2.0, 2.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, 3.0]], [[5.0, 0.0], [1.0, 2.0]]]),
            torch.tensor([[[True, True], [False, True]], [[True, False], [False, True]], [[False, False]] * 2]),
        ),
        drawn("one completion, steps below zero", lambda d: (d.normal(3, 1, 6) - 5, d.integers(2, 3, 1, 6) == 0)),
        drawn("one token each", lambda d: (d.normal(2, 5, 1), d.integers(4, 2, 5, 1) > 0)),
        drawn("eps 2", lambda d: (d.normal(2, 3, 4), d.integers(2, 2, 3, 4) == 0), eps=2.0),
        drawn(
            "two prompts of unlike spread",
            lambda d: (d.normal(2, 3, 4) * f64([[[1.0]], [[9.0]]]) + 2, d.integers(2, 2, 3, 4) == 0),
        ),
        drawn("as many of everything", lambda d: (d.normal(3, 3, 3), d.integers(3, 3, 3, 3) > 0)),
        drawn("every token a step, a large eps", lambda d: (d.normal(1, 2, 5), d.integers(1, 1, 2, 5) == 0), eps=0.5),
        given(
            "NaN where no step ends",
            f64([[[NAN, 1.0, NAN], [0.0, NAN, 2.0]]]),
            torch.tensor([[[False, True, False], [True, False, True]]]),
        ),
        extreme(
            "infinity where no step ends",
            f64([[[INF, 1.0, -INF], [0.0, INF, 2.0]]]),
            torch.tensor([[[False, True, False], [True, False, True]]]),
        ),
        extreme(
            "equal steps in float32, far from zero",
            torch.full((1, 3, 1), 1_000_000.125),
            torch.ones(1, 3, 1, dtype=torch.bool),
        ),
        extreme(
            "equal steps in float32, more than one each",
            torch.full((2, 2, 3), 1_000_000.125),
            torch.tensor([[[True, False, True], [False, True, False]], [[True] * 3] * 2]),
        ),
        extreme("two steps that differ by a hair, a small eps", 1e-8 * TWO, AT_ENDS, eps=1e-8),
        extreme("two steps that differ by less than a hair", 1e-12 * TWO, AT_ENDS, eps=1e-12),
        extreme("a huge eps", 1e-3 * TWO, AT_ENDS, eps=1e4),
        at_scale(
            "300 good steps against 300 bad ones",
            lambda d: (
                f64([[[1.0], [-1.0]]]) + 0.1 * d.normal(1, 2, 300),
                torch.ones(1, 2, 300, dtype=torch.bool),
            ),
        ),
        at_scale("150 tokens, NaN where no step ends", lambda d: _sparse(d, 3, 4, 150)),
        at_scale("a million from zero", lambda d: (1e6 + d.normal(2, 3, 20), d.integers(2, 2, 3, 20) == 0)),
        at_scale("a spread as small as eps", lambda d: (d.normal(2, 3, 9, scale=1e-4), d.integers(2, 2, 3, 9) == 0)),
        at_scale("float32", lambda d: (d.normal(2, 5, 30).float(), d.integers(3, 2, 5, 30) == 0)),
        refused("eps 0", TWO, AT_ENDS, eps=0.0),
        refused("an eps below 0", TWO, AT_ENDS, eps=-1e-4),
        refused("an eps that is NaN", TWO, AT_ENDS, eps=NAN),
        refused("a step whose reward is minus infinity", f64([[[1.0, 0.0], [0.0, -INF]]]), AT_ENDS),
        refused("a mask without its batch", TWO, AT_ENDS[0]),
        refused("completions and tokens of the mask exchanged", TWO.repeat(1, 1, 2), AT_ENDS.repeat(1, 2, 1)),
        refused("a mask with an axis too many", TWO, AT_ENDS[None]),
        refused("rewards without their batch", TWO[0], AT_ENDS),
        refused("a mask of more tokens", TWO[:, :, :1], AT_ENDS),
        refused("a step whose reward is NaN", f64([[[NAN, 0.0], [0.0, 3.0]]]), AT_ENDS),
        refused("a step whose reward is infinite", f64([[[1.0, 0.0], [0.0, INF]]]), AT_ENDS),
        refused("one group without its batch", TWO[0], AT_ENDS[0]),
        refused("a mask of fewer completions", TWO, AT_ENDS[:, :1]),
        refused("a mask of fewer tokens", TWO, AT_ENDS[:, :, :1]),
        refused("a mask of fewer prompts", TWO.repeat(2, 1, 1), AT_ENDS),
        refused("an axis too many", TWO[None], AT_ENDS[None]),
    ),
    misconceptions=(
        Misconception(
            "credits-the-past",
            changed(process_advantages, ("scaled.flip(-1).cumsum(-1).flip(-1)", "scaled.cumsum(-1)")),
            "Your sum runs forwards: a token is credited with the steps *before* it, which it cannot have caused. "
            "From which end has the sum to run?",
            "2.12",
        ),
        Misconception(
            "own-step-left-out",
            changed(process_advantages, ("return advantages", "return advantages - scaled")),
            "The last token of a step gets nothing for its own step. Read Eq. (2.12) again: are the steps that end "
            "*at* t counted?",
            "2.12",
        ),
        Misconception(
            "not-accumulated",
            not_accumulated,
            "Only the last token of each step gets credit. The tokens that led there did the work: what happens "
            "between Eq. (2.11) and the result?",
            "2.12",
        ),
        Misconception(
            "mean-over-padding",
            over_padding,
            "Mean and spread run over all positions, also those at which no step ends. Longer responses then have "
            "smaller means. How many numbers does a group really have to average?",
            "2.8",
        ),
        Misconception(
            "each-completion-alone",
            each_alone,
            "Each completion is normalised by itself. One with only good steps then looks like one with only bad "
            "steps. With whom is a step to be compared?",
            "2.8",
        ),
        Misconception(
            "by-position",
            by_position,
            "You normalise each position by itself. Position 17 of one response need not be step 3 of another. Over "
            "which axes does n_p count?",
            "2.8",
        ),
        Misconception(
            "std-over-batch",
            over_batch,
            "Steps of all prompts are normalised together, so hard prompts are blamed for being hard. Which axis "
            "should your sums leave alone?",
            "2.8",
        ),
        Misconception(
            "std-no-eps",
            changed(process_advantages, ("(std + eps)", "std")),
            "There is no epsilon in your quotient: steps that are all equal give 0 / 0. What should they teach?",
            "2.11",
        ),
        Misconception(
            "eps-inside-the-root",
            changed(process_advantages, ("(std + eps)", "(std.square() + eps).sqrt()")),
            "Your epsilon stands inside the root, where it counts as much as its own root: 0.0001 becomes 0.01. "
            "Where does Eq. (2.11) put it?",
            "2.11",
        ),
        Misconception(
            "population-std",
            changed(process_advantages, ("(count - 1).clamp", "count.clamp")),
            "You divide by n where Eq. (2.10) divides by n - 1.",
            "2.10",
        ),
        Misconception(
            "no-centre",
            changed(process_advantages, ("scaled.flip(-1)", "torch.where(step_mask, step_rewards, 0).flip(-1)")),
            "These are the rewards still to come, not compared with anything. If all steps are good, all tokens are "
            "pushed up. Where does the group enter?",
            "2.9",
        ),
        Misconception(
            "summed-before-normalising",
            summed_first,
            "You add up first and normalise then. The early tokens, with more steps to come, have larger sums, so "
            "being early looks like being good. In which order do the equations stand?",
            "2.11",
        ),
        Misconception(
            "no-step-below-the-mean",
            changed(process_advantages, ("step_rewards - least", "step_rewards"), ("step_mask * (", "(")),
            "After the mean is subtracted, positions without a step hold minus the mean, and they count in your spread "
            "and in your sums. What does the factor in front of the bracket of Eq. (2.9) do?",
            "2.9",
        ),
        Misconception(
            "residue-as-spread",
            changed(process_advantages, ("step_rewards - least", "step_rewards")),
            "Right on paper, but in floating point the mean of equal numbers need not be that number. What is left "
            "over is then all the spread there is: divided by itself, it pushes equal steps apart. What does Eq. (2.7) "
            "subtract beforehand?",
            "2.7",
        ),
        Misconception(
            "zero-times-nan",
            changed(process_advantages, ("count = ", "from_least = step_rewards * step_mask; count = ")),
            "NaN: you multiply by the mask, and where no step ends anything may stand. What is zero times NaN? Look "
            "for an operation that *chooses* between two values.",
            "2.9",
        ),
    ),
)
