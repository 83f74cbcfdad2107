"""The exercise exponential_race: wrong answers, as people write them, then what is said about each."""

import torch

from grpo_lab.course.exercise import Case, Exercise, Misconception
from grpo_lab.course.exercises._inputs import f64, given
from grpo_lab.rollout.static import exponential_race


def greedy(log_pi, noise):
    return log_pi.argmax(-1)


def last_to_ring(log_pi, noise):
    return (log_pi.exp() / noise).argmin(-1)


def multiplied(log_pi, noise):
    return (log_pi.exp() * noise).argmax(-1)


def exponential_for_gumbel(log_pi, noise):
    return (log_pi + noise).argmax(-1)


def logarithm_divided(log_pi, noise):
    return (log_pi / noise).argmax(-1)


def noise_alone(log_pi, noise):
    return noise.argmin(-1)


def down_the_columns(log_pi, noise):
    return (log_pi.exp() / noise).argmax(0)


def axis_kept(log_pi, noise):
    return (log_pi.exp() / noise).argmax(-1, keepdim=True)


def winning_score(log_pi, noise):
    return (log_pi.exp() / noise).amax(-1)


def _drawn(label, B, V, forbidden=0):
    def build(seed: int) -> tuple[tuple, dict]:
        dice = torch.Generator().manual_seed(seed)
        logits = torch.randn(B, V, generator=dice, dtype=torch.float64)
        logits[:, :forbidden] = -torch.inf
        noise = torch.empty(B, V, dtype=torch.float64).exponential_(generator=dice)
        return (logits.log_softmax(-1), noise), {}

    return Case(build, label)


EXERCISE = Exercise(
    function=exponential_race,
    notebook="08",
    points=3,
    minutes=15,
    difficulty=2,
    task="Draw a token from its distribution with noise that is already there. A card can do this without asking the "
    "host, so a whole step of decoding can be captured and repeated.",
    hints=(
        "Every token has a clock that rings after E / pi. Which one rings first?",
        "You hold log-probabilities, and the noise is no logarithm. Bring both to one side.",
        "One token for each row: over which axis do they race, and which of torch's functions names the winner?",
    ),
    cases=(
        given("two tokens, equal noise", f64([[0.75, 0.25]]).log(), f64([[1.0, 1.0]])),
        given("the unlikely one is lucky", f64([[0.75, 0.25]]).log(), f64([[1.0, 0.1]])),
        given("the likely one keeps its lead", f64([[0.75, 0.25]]).log(), f64([[0.5, 0.4]])),
        given("small noise", f64([[0.75, 0.25]]).log(), f64([[0.01, 0.1]])),
        given("three tokens, large noise", f64([[0.5, 0.3, 0.2]]).log(), f64([[0.6, 0.7, 3.0]])),
        given("one token is forbidden", f64([[0.0, 0.5, 0.5]]).log(), f64([[0.01, 1.0, 2.0]])),
        given("two rows", f64([[0.5, 0.5], [0.9, 0.1]]).log(), f64([[2.0, 1.0], [1.0, 1.0]])),
        _drawn("many rows", 12, 7),
        _drawn("as many rows as tokens", 6, 6),
        _drawn("three tokens forbidden", 10, 9, forbidden=3),
    ),
    misconceptions=(
        Misconception(
            "greedy",
            greedy,
            "The noise has no effect: you always take the likeliest token. Then all G completions of a prompt are the "
            "same, all advantages are zero, and nothing is learned.",
            "8.31",
        ),
        Misconception(
            "last-to-ring",
            last_to_ring,
            "You take the smallest score. That is the clock that rings *last*: usually the least likely token, and "
            "forbidden ones first of all.",
            "8.31",
        ),
        Misconception(
            "noise-multiplied",
            multiplied,
            "You multiply by the noise. A clock of rate pi rings after E / pi: the smaller E, the sooner. With a "
            "product the chances are no longer pi; work out two tokens with 0.75 and 0.25.",
            "8.30",
        ),
        Misconception(
            "exponential-as-gumbel",
            exponential_for_gumbel,
            "Adding noise to log-probabilities is the Gumbel trick, but this noise is exponential. What has to be "
            "done to E before it may be added, and with which sign?",
            "8.30",
        ),
        Misconception(
            "logarithm-divided",
            logarithm_divided,
            "You divide the log-probability by the noise. It is the *probability* that is the rate of the clock.",
            "8.30",
        ),
        Misconception(
            "policy-ignored",
            noise_alone,
            "The smallest noise wins, whatever the policy thinks: every token is equally likely, forbidden ones too.",
            "8.30",
        ),
        Misconception(
            "wrong-axis",
            down_the_columns,
            "Your rows race against each other. Within a row, the tokens should.",
            "8.31",
        ),
        Misconception(
            "axis-kept",
            axis_kept,
            "The tokens are right, but the shape is (B, 1). The signature promises (B,).",
            "8.31",
        ),
        Misconception(
            "score-returned",
            winning_score,
            "You return the winner's score. Asked for is its number.",
            "8.31",
        ),
    ),
)
