import torch

from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import Dice, at_scale, drawn, extreme, f64, given
from grpo_lab.course.wrong_answers import changed
from grpo_lab.rollout.static import exponential_race

WINNERS = [[0.1, 1.0, 1.0], [1.0, 0.5, 1.0], [1.0, 1.0, 0.1]]


def _race(dice: Dice, B: int, V: int, forbidden: int = 0, scale: float = 1.0) -> tuple:
    logits = dice.normal(B, V, scale=scale)
    logits[:, :forbidden] = -torch.inf
    noise = torch.empty(B, V, dtype=torch.float64).exponential_(generator=dice.generator)
    return logits.log_softmax(-1), noise


EXERCISE = Exercise(
    function=exponential_race,
    notebook="08",
    points=3,
    minutes=15,
    difficulty=2,
    task="Draw a token from its distribution with noise that is already there. A GPU can do this without waiting for "
    "the CPU, so a whole step of decoding can be captured and repeated.",
    hints=(
        "Every token has a clock that rings after E / pi. Which one rings first?",
        "You hold log-probabilities, and the noise is no logarithm. Bring both to one side.",
        "One token for each row: over which axis do they race, and which of torch's functions names the winner?",
    ),
    cases=(
        given("two tokens, equal noise", f64([[0.75, 0.25]]).log(), f64([[1.0, 1.0]])),
        given("the unlikely one is lucky", f64([[0.75, 0.25]]).log(), f64([[1.0, 0.1]])),
        given("three tokens, large noise", f64([[0.5, 0.3, 0.2]]).log(), f64([[0.6, 0.7, 3.0]])),
        given("one token is forbidden", f64([[0.0, 0.5, 0.5]]).log(), f64([[0.01, 1.0, 2.0]])),
        given("two tokens nearly alike", f64([[0.49999, 0.50001]]).log(), f64([[1.0, 1.0]])),
        given("the first, the middle and the last", f64([[0.2, 0.6, 0.2]] * 3).log(), f64(WINNERS)),
        drawn("many rows", lambda d: _race(d, 12, 7)),
        drawn("as many rows as tokens", lambda d: _race(d, 6, 6)),
        drawn("three tokens forbidden", lambda d: _race(d, 10, 9, forbidden=3)),
        extreme("noise close to zero", f64([[0.75, 0.25]]).log(), f64([[1e-12, 2e-13]])),
        extreme("a token 200 below the best", f64([[0.0, -200.0], [-200.0, 0.0]]), f64([[9.0, 1e-9], [1e-9, 9.0]])),
        at_scale("300 rows, 100 tokens, gaps of hundreds", lambda d: _race(d, 300, 100, scale=100.0)),
    ),
    misconceptions=(
        Misconception(
            "greedy",
            changed(exponential_race, ("log_pi.exp() / noise", "log_pi")),
            "The noise has no effect: you always take the likeliest token. Then all G completions of a prompt are the "
            "same, all advantages are zero, and nothing is learned.",
            "8.31",
        ),
        Misconception(
            "last-to-ring",
            changed(exponential_race, ("argmax", "argmin")),
            "You take the smallest score. That is the clock that rings *last*: usually the least likely token, and "
            "forbidden ones first of all.",
            "8.31",
        ),
        Misconception(
            "noise-multiplied",
            changed(exponential_race, ("log_pi.exp() / noise", "log_pi.exp() * noise")),
            "You multiply by the noise. A clock of rate pi rings after E / pi: the smaller E, the sooner. With a "
            "product the chances are no longer pi; work out two tokens with 0.75 and 0.25.",
            "8.30",
        ),
        Misconception(
            "exponential-as-gumbel",
            changed(exponential_race, ("log_pi.exp() / noise", "log_pi + noise")),
            "Adding noise to log-probabilities is the Gumbel trick, but this noise is exponential. What has to be "
            "done to E before it may be added, and with which sign?",
            "8.30",
        ),
        Misconception(
            "logarithm-divided",
            changed(exponential_race, ("log_pi.exp() / noise", "log_pi / noise")),
            "You divide the log-probability by the noise. It is the *probability* that is the rate of the clock.",
            "8.30",
        ),
    ),
)
