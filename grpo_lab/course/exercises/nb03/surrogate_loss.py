"""The exercise surrogate_loss: wrong answers, as people write them, then what is said about each."""

import torch

from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn, extreme, f64, given, refused
from grpo_lab.sorting import surrogate_loss


def _loss(logp, ratio, A, loss, epsilon):
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon)
    gain = {"naive": A * logp, "unclipped": ratio * A, "clipped": torch.minimum(ratio * A, clipped * A)}
    return -gain[loss].mean()


def quotient(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    return _loss(logp, logp / old_logp.detach(), advantages[:, None], loss, epsilon)


def log_ratio(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    return _loss(logp, 1 + logp - old_logp.detach(), advantages[:, None], loss, epsilon)


def inverted_ratio(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    return _loss(logp, (old_logp.detach() - logp).exp(), advantages[:, None], loss, epsilon)


def live_old(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    return _loss(logp, (logp - old_logp).exp(), advantages[:, None], loss, epsilon)


def underflowing(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    return _loss(logp, logp.exp() / old_logp.detach().exp(), advantages[:, None], loss, epsilon)


def broadcast(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    return _loss(logp, (logp - old_logp.detach()).exp(), advantages, loss, epsilon)


def sign(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    return -surrogate_loss(logp, old_logp, advantages, loss, epsilon)


def summed(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    return logp.shape[1] * surrogate_loss(logp, old_logp, advantages, loss, epsilon)


def _turns(d, B, T, spread=0.5):
    old = d.logp(B, T)
    return d.logp_near(old, spread), old, d.normal(B)


def whitened(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    centred = advantages - advantages.mean()
    deviation = (centred.square().sum() / (len(centred) - 1)).sqrt()  # NaN for a single response, as `std` says
    return surrogate_loss(logp, old_logp, centred / (deviation + 1e-8), loss, epsilon)


def _weighted(d, scale):
    logp, old, A = _turns(d, 4, 3)
    return logp, old, scale * A


def _cancelling(d, T):
    """Two responses with opposite advantages, and ratios of nearly 1: what is left of the loss is small."""
    old = d.logp(1, T).expand(2, T)
    return old + d.normal(2, T, scale=1e-4), old.clone(), f64([1.0, -1.0])


LOSSES = ("naive", "unclipped", "clipped")
HALF = f64([[0.5]]).log()
UP, DOWN = f64([[0.75]]).log(), f64([[0.25]]).log()  # ratios 3/2 and 1/2
BETTER, WORSE = f64([1.0]), f64([-1.0])

EXERCISE = Exercise(
    function=surrogate_loss,
    notebook="03",
    points=5,
    minutes=25,
    difficulty=3,
    task="Write the three losses of the notebook. They agree at the first inner step; what each does at the second "
    "makes the difference between a run that learns and one that breaks.",
    hints=(
        "One advantage belongs to a whole response. Which axis has to be added to it, so that it meets all numbers of "
        "that response, and of no other?",
        "The ratio compares probabilities, and you have their logarithms. Differences of logarithms are cheap; what "
        "brings them back? And which of the two is a stored number?",
        "For 'clipped', compute both offers for every number, each already multiplied by the advantage. Then take the "
        "worse of the two, number by number.",
    ),
    cases=(
        given("likelier by half, better", UP, HALF, BETTER),
        given("likelier by half, worse", UP, HALF, WORSE),
        given("half as likely, better", DOWN, HALF, BETTER),
        given("half as likely, worse", DOWN, HALF, WORSE),
        given("ratio 1, better than the group", HALF, HALF, BETTER),
        given("half as likely, worse, not clipped", DOWN, HALF, WORSE, loss="unclipped"),
        given(
            "two responses, one with advantage 0", f64([[0.5], [0.5]]).log(), f64([[0.5], [0.5]]).log(), f64([1.0, 0.0])
        ),
        given("two numbers, naive", f64([[0.5, 0.25]]).log(), f64([[0.5, 0.5]]).log(), BETTER, loss="naive"),
        drawn("naive", lambda d: _turns(d, 4, 3), loss="naive"),
        drawn("unclipped", lambda d: _turns(d, 4, 3), loss="unclipped"),
        drawn("clipped", lambda d: _turns(d, 4, 3), loss="clipped"),
        drawn("as many responses as numbers, a narrow clip", lambda d: _turns(d, 4, 4), epsilon=0.05),
        drawn("as many responses as numbers, naive", lambda d: _turns(d, 3, 3), loss="naive"),
        drawn("a single number a response", lambda d: _turns(d, 5, 1)),
        drawn("a wide clip", lambda d: _turns(d, 4, 6, 1.0), epsilon=0.9),
        extreme("one ratio of e^200, one of e^-200, better", f64([[-1.0, -201.0]]), f64([[-201.0, -1.0]]), BETTER),
        extreme("a ratio of e^200, worse", f64([[-1.0]]), f64([[-201.0]]), WORSE),
        extreme("a ratio of e^-200, worse", f64([[-201.0]]), f64([[-1.0]]), WORSE),
        extreme("probabilities of e^-800", f64([[-800.0, -800.5]]), f64([[-800.1, -800.1]]), BETTER),
        at_scale("300 numbers", lambda d: _turns(d, 3, 300)),
        at_scale("300 responses, naive", lambda d: _turns(d, 300, 2), loss="naive"),
        at_scale("ratios far from 1", lambda d: _turns(d, 5, 7, 4.0), loss="unclipped"),
        at_scale("ratios far from 1, a clip range of 0", lambda d: _turns(d, 5, 7, 4.0), epsilon=0.0),
        at_scale("ratios far from 1, a clip range of 1", lambda d: _turns(d, 5, 7, 4.0), epsilon=1.0),
        *(at_scale(f"{loss}, advantages that cancel", lambda d: _cancelling(d, 3), loss=loss) for loss in LOSSES),
        *(at_scale(f"{loss}, large advantages", lambda d: _weighted(d, 1e5), loss=loss) for loss in LOSSES),
        *(at_scale(f"{loss}, tiny advantages", lambda d: _weighted(d, 1e-7), loss=loss) for loss in LOSSES),
        extreme("almost certain, naive", f64([[-3e-7, -2e-4]]), f64([[-1e-7, -3e-4]]), BETTER, loss="naive"),
        *(
            extreme(f"{loss}, 20000 nats", f64([[-20000.0, -20000.25]]), f64([[-20000.5, -20000.0]]), WORSE, loss=loss)
            for loss in LOSSES
        ),
        at_scale("float32", lambda d: tuple(x.float() for x in _turns(d, 4, 50))),
        refused("a loss that there is not", UP, HALF, BETTER, loss="clip"),
        refused("a loss in capitals", UP, HALF, BETTER, loss="CLIPPED"),
        refused("a loss with a capital", UP, HALF, BETTER, loss="Naive"),
        refused("a longer name", UP, HALF, BETTER, loss="naive2"),
        refused("a blank behind the name", UP, HALF, BETTER, loss="unclipped "),
        refused("the name of another loss", UP, HALF, BETTER, loss="grpo"),
        refused("no name", UP, HALF, BETTER, loss=""),
    ),
    gradient_of=("logp", "old_logp"),
    misconceptions=(
        Misconception(
            "ratio-quotient",
            quotient,
            "You divide one log-probability by the other. Both are negative: when a number becomes likelier, your "
            "'ratio' falls, so training runs backwards. How is a quotient of probabilities written with logarithms?",
            "3.17",
        ),
        Misconception(
            "ratio-not-exponentiated",
            log_ratio,
            "You use 1 plus the difference of the logarithms. That is the ratio near 1, and only there: far from it "
            "your 'ratio' can even be negative. Which function undoes a logarithm?",
            "3.17",
        ),
        Misconception(
            "ratio-upside-down",
            inverted_ratio,
            "Your ratio is old over new: it falls when a number becomes likelier. Which of the two policies is being "
            "trained, and so stands on top?",
            "3.17",
        ),
        Misconception(
            "ratio-of-underflowing-probabilities",
            underflowing,
            "Right on paper: you make probabilities of both logarithms and divide. A probability of e^-800 is zero to "
            "the computer, and so your ratio is 0 / 0. Which operation on the logarithms comes to the same as a "
            "quotient, and needs neither probability?",
            "3.17",
        ),
        Misconception(
            "old-not-detached",
            live_old,
            "The values are right, but a gradient flows into `old_logp`. At the first inner step old and new are the "
            "same network: the two gradients cancel and nothing is learned. What are the old log-probabilities, a "
            "network or numbers?",
            "3.17",
        ),
        Misconception(
            "old-is-new",
            changed(
                surrogate_loss,
                ("importance_ratio(logp, old_logp, mask)", "importance_ratio(logp, logp.detach(), mask)"),
                ("mask, old_logp, epsilon", "mask, logp.detach(), epsilon"),
            ),
            "Your ratio is 1 everywhere, and `old_logp` makes no difference: you divide the policy by itself. At the "
            "first inner step that is right. Which policy drew these responses, once a step has been taken?",
            "3.17",
        ),
        Misconception(
            "advantages-whitened-again",
            whitened,
            "You centre and scale the advantages once more. They arrive as update weights, and whoever made them may "
            "have left the scale out on purpose. Which operation on A stands in Eq. (3.16) to (3.18)?",
            "3.16",
        ),
        Misconception(
            "advantage-broadcast",
            broadcast,
            "The advantages meet the wrong axis: advantage j is multiplied with position j of *every* response. With "
            "as many responses as positions, or with one position, that runs without complaint; otherwise it crashes, "
            "and you are lucky. "
            "Which shape says 'one per row'?",
            "3.18",
        ),
        Misconception(
            "sign-turned",
            sign,
            "This is the surrogate itself, to be maximised. Optimisers go downhill: as it stands, better responses "
            "become rarer.",
            "3.18",
        ),
        Misconception(
            "sum-over-numbers",
            summed,
            "You average over responses and add up over their numbers. Longer responses then push harder. By what do "
            "all three equations divide?",
            "3.18",
        ),
        Misconception(
            "naive-not-divided-by-length",
            changed(surrogate_loss, (" / logp.shape[1]", "")),
            "Your naive loss is T times as large as the other two, so at the first inner step their gradients don't "
            "agree, as they should. By what does Eq. (3.16) divide?",
            "3.16",
        ),
        Misconception(
            "naive-with-ratio",
            changed(
                surrogate_loss,
                (
                    "reinforce_loss(sequence_logprob(logp, mask) / logp.shape[1], advantages)",
                    "aggregate(-importance_ratio(logp, old_logp, mask) * advantages[:, None], mask, 'grpo')",
                ),
            ),
            "Your naive loss is the unclipped one. The two have the same gradient at the first inner step, and not "
            "afterwards. What stands behind the advantage in Eq. (3.16)?",
            "3.16",
        ),
        Misconception(
            "epsilon-ignored",
            changed(surrogate_loss, (", epsilon=epsilon", "")),
            "Your clip range is always 0.2, whatever `epsilon` is. Where do the bounds of the range come from?",
            "3.18",
        ),
        Misconception(
            "clipped-above-only",
            changed(
                surrogate_loss,
                (
                    "policy_loss(logp, advantages, mask, old_logp, epsilon=epsilon)[0]",
                    "(-(logp - old_logp.detach()).exp() * advantages[:, None]).maximum("
                    "-(logp - old_logp.detach()).exp().clamp(max=1 + epsilon) * advantages[:, None]).mean()",
                ),
            ),
            "Your ratio has an upper bound and no lower one. Try ratio 1/2 with advantage -1: should that number still "
            "be pushed down?",
            "3.18",
        ),
        Misconception(
            "clip-inverted",
            # The larger of two is minus the smaller of their negatives.
            changed(surrogate_loss, ("policy_loss(logp, advantages,", "-policy_loss(logp, -advantages,")),
            "You take the better of the two offers. Then the clip acts where the policy has moved the wrong way, and "
            "lets it run where it has gone far enough. Which of the two is the cautious one?",
            "3.18",
        ),
        Misconception(
            "clip-one-sided",
            changed(
                surrogate_loss,
                (
                    "policy_loss(logp, advantages, mask, old_logp, epsilon=epsilon)[0]",
                    "-((logp - old_logp.detach()).exp().clamp(max=1 + epsilon) * advantages[:, None]).mean()",
                ),
            ),
            "You compare the ratios before the advantage is multiplied in. For a negative advantage, smaller and "
            "larger change places. Try ratio 1/2 with advantage -1: should that number still be pushed down?",
            "3.18",
        ),
        Misconception(
            "clipped-offer-only",
            changed(
                surrogate_loss,
                (
                    "policy_loss(logp, advantages, mask, old_logp, epsilon=epsilon)[0]",
                    "-((logp - old_logp.detach()).exp().clamp(1 - epsilon, 1 + epsilon) * advantages[:, None]).mean()",
                ),
            ),
            "You use the clipped ratio alone. A number that has moved the wrong way, beyond the range, then has no "
            "gradient left to bring it back. What is the other offer in the minimum for?",
            "3.18",
        ),
    ),
)
