"""The exercises of notebook 04."""

import torch

from grpo_lab.course.exercise import INF, Exercise, Misconception, at_scale, drawn, extreme, f64, given, padded
from grpo_lab.kl import kl_estimate, kl_exact, kl_in_reward

NAMES = ("k1", "k2", "k3", "k3+")
HALF, QUARTER = f64([[0.5]]).log(), f64([[0.25]]).log()

KL_ESTIMATE = Exercise(
    function=kl_estimate,
    points=6,
    minutes=8,
    difficulty=3,
    task="Write the three estimators, and the one that has the value of k3 with the gradient of k2. To have the right "
    "value and to have the right gradient are two different things, and the check looks at both.",
    hints=(
        "Everything is made of one number for each token, d. Write that line first, and mind its order.",
        "The reference is fixed. A gradient may flow into one of the two log-probabilities only.",
        "For 'k3+': x minus sg[x] has the value zero, and the gradient of x. What do you add to give it another value "
        "and no other gradient?",
        "k3 is the difference of two nearly equal numbers when the policies are close. `expm1` computes one of them "
        "without losing digits.",
    ),
    cases=(
        *(given(f"{name}, twice as likely as under the reference", HALF, QUARTER, name) for name in NAMES),
        given("k1, half as likely as under the reference", QUARTER, HALF, "k1"),
        given("k3, half as likely as under the reference", QUARTER, HALF, "k3"),
        given("no distance, and no estimator named", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]])),
        *(drawn(name, lambda d, name=name: (*d.moved(2, 3), name)) for name in NAMES),
        *(extreme(f"{name}, 200 nats apart", f64([[-0.5, -200.5]]), f64([[-200.5, -0.5]]), name) for name in NAMES),
    ),
    gradient_of=("logp", "ref_logp"),
    misconceptions={
        "kl-reversed": Misconception(
            "Your d has the other sign. k2 does not notice, k1 comes out negated, and k3 stays positive and looks "
            "right, but it estimates another quantity and pulls on the wrong tokens. "
            "Of the two, whose log-probability comes first in Eq. (4.1)?",
            {"4.1": "d = logp - ref_logp.detach()"},
        ),
        "kl-reversed-in-k3": Misconception(
            "Your k1 is right, and in k3 the exponent has the other sign. The result is never negative, and zero where "
            "the policies agree, but its average is a chi-square divergence less the KL. Which quotient of "
            "probabilities averages to 1 under the policy?",
            {"4.4": "k3 = (-d).expm1() + d"},
        ),
        "reference-not-detached": Misconception(
            "The values are right, but a gradient flows into the reference as well. In training, which of the two is "
            "meant to move?",
            {"4.1": "d = ref_logp - logp"},
        ),
        "k2-not-halved": Misconception(
            "Your k2 is twice as large as it should be. Near d = 0 it should agree with k3: expand the exponential to "
            "second order and compare.",
            {"4.3": "k2 = d.square()"},
        ),
        "k1-as-loss": Misconception(
            "Your k3+ has the right value and the gradient of k1. On average that gradient is zero: as a term of the "
            "loss it is noise and nothing else. Which estimator's gradient is worth having?",
            {"4.5": "k3_plus = k1 - k1.detach() + k3.detach()"},
        ),
        "k3-plus-is-k3": Misconception(
            "Your k3+ is k3, gradient included, and that is the gradient of the *forward* KL. Which factor should be "
            "frozen, and which should carry the gradient?",
            {"4.5": "k3_plus = k3"},
        ),
    },
)


KL_EXACT = Exercise(
    function=kl_exact,
    points=4,
    minutes=4,
    difficulty=2,
    task="Sum over the whole vocabulary: the KL divergence that the estimators of one sampled token are after. It is "
    "the truth that you hold them against.",
    hints=(
        "Under which of the two distributions is the average taken? Swap the arguments and you get another number.",
        "Both logits become log-probabilities first, each over its own V words. Only then compare.",
        "You need the probabilities too, and can get them from their logarithms. The other way round, a probability "
        "of zero has no logarithm to multiply with.",
    ),
    cases=(
        given("a coin, from 1/4 and 3/4", f64([[[1.0, 1.0]]]), f64([[[1.0, 3.0]]]).log()),
        given("1/4 and 3/4, from a coin", f64([[[0.25, 0.75]]]).log(), f64([[[0.5, 0.5]]]).log()),
        given("the same policy, all logits 1 higher", f64([[[1.0, 3.0]]]), f64([[[0.0, 2.0]]])),
        given("two positions", f64([[[0.9, 0.1], [0.5, 0.5]]]).log(), f64([[[0.5, 0.5], [0.9, 0.1]]]).log()),
        drawn("as many of everything", lambda d: (d.normal(3, 3, 3, scale=2.0), d.normal(3, 3, 3, scale=2.0))),
        extreme("a policy that is certain", f64([[[800.0, 0.0]]]), f64([[[0.0, 0.0]]])),
        extreme("a reference that is certain", f64([[[0.0, 0.0]]]), f64([[[800.0, 0.0]]])),
        extreme("a word that the reference never says", f64([[[0.0, 0.0, 1.0]]]), f64([[[0.0, -1e5, 1.0]]])),
    ),
    gradient_of=("logits", "ref_logits"),
    misconceptions={
        "kl-reversed": Misconception(
            "This is the forward KL, averaged over what the *reference* says. It is never negative and zero where the "
            "two agree, so nothing looks wrong. Whose samples does Eq. (4.a) average over?",
            {"4.7": "kl = (ref_logp.exp() * (ref_logp - logp)).sum(-1)"},
        ),
        "kl-full-prob": Misconception(
            "Your softmax runs over the positions of a row, so what you compare are not distributions over words. "
            "With a single position it gives zero, whatever the logits. Over which of B, T, V do the probabilities of "
            "one choice add up to 1?",
            {"4.6": "logp, ref_logp = logits.log_softmax(1), ref_logits.log_softmax(1)"},
        ),
        "kl-full-prob-log-target": Misconception(
            "You give `kl_div` a target of log-probabilities, and it takes them for probabilities: they are negative, "
            "and their logarithm is NaN. What does its documentation say about `log_target`?",
            {"4.7": "kl = torch.nn.functional.kl_div(ref_logp, logp, reduction='none').sum(-1)"},
        ),
        "logits-not-normalised": Misconception(
            "You compare the logits as they come. Add 1 to all logits of the policy: it is the same policy, but your "
            "distance from it has grown by 1. What has to happen to logits first?",
            {"4.7": "kl = (logp.exp() * (logits - ref_logits)).sum(-1)"},
            equation="4.6",
        ),
        "k1-as-loss": Misconception(
            "The value is right, and its gradient is zero: the probabilities in front carry none, and the average of "
            "the score, which is left, vanishes. This is k1, averaged, as a loss. Where does the policy stand in "
            "Eq. (4.7)?",
            {"4.7": "kl = (logp.exp().detach() * (logp - ref_logp)).sum(-1)"},
        ),
        "log-of-zero": Misconception(
            "NaN for a policy that is certain: a probability that is 0 in floating point has a logarithm of minus "
            "infinity, and zero times that is not a number. Could you have the logarithm without the probability "
            "first?",
            {"4.7": "kl = (logp.exp() * (logp.exp().log() - ref_logp.exp().log())).sum(-1)"},
            equation="4.6",
        ),
    },
)


def _batch(d, B, T):
    return d.normal(B), *d.moved(B, T), d.ragged(B, T)


def _with_holes(d, B, T):
    """NaN and infinities stand where nothing counts."""
    rewards, logp, ref, _ = _batch(d, B, T)
    mask = d.holes(B, T)
    return rewards, padded(logp, mask), padded(ref, mask, -INF), mask


YES = torch.tensor([[True]])

KL_IN_REWARD = Exercise(
    function=kl_in_reward,
    points=3,
    minutes=4,
    difficulty=2,
    task="Charge the distance from the reference to the reward of each answer, as PPO for language models does. The "
    "policy gradient then does the rest.",
    hints=(
        "A reward is a number that comes from outside. What does that mean for the gradient of what you subtract?",
        "Which of the estimators is the plain difference of two log-probabilities? It may be negative, and then the "
        "answer gains.",
        "What stands behind the end of an answer may be anything, even minus infinity twice over. Choose, and don't "
        "multiply by zero.",
    ),
    cases=(
        given("twice as likely as under the reference", f64([1.0]), f64([[0.5]]).log(), f64([[0.25]]).log(), YES, 1.0),
        given("half as likely: a bonus", f64([1.0]), f64([[0.25]]).log(), f64([[0.5]]).log(), YES, 0.5),
        given(
            "two tokens and padding",
            f64([0.0]),
            f64([[-1.0, -1.0, -1.0]]),
            f64([[-2.0, -3.0, -5.0]]),
            torch.tensor([[True, True, False]]),
            1.0,
        ),
        given("no charge", f64([2.0]), f64([[-1.0]]), f64([[-3.0]]), YES, 0.0),
        drawn("answers of different lengths", lambda d: (*_batch(d, 3, 5), 0.1)),
        extreme(
            "minus infinity in the padding",
            f64([1.0]),
            f64([[-1.0, -INF]]),
            f64([[-2.0, -INF]]),
            torch.tensor([[True, False]]),
            0.5,
        ),
        at_scale("300 tokens, NaN wherever nothing counts", lambda d: (*_with_holes(d, 7, 300), 0.04)),
    ),
    gradient_of=("logp", "ref_logp"),
    misconceptions={
        "kl-reversed": Misconception(
            "The charge has the wrong sign: an answer that the policy likes better than the reference does earns "
            "*more*. Such a policy is paid for running away. Which way should the distance push the reward?",
            {
                "4.8": "penalised = rewards + beta * torch.where(mask, kl_estimate(logp, ref_logp, 'k1'), "
                "0).sum(-1).detach()"
            },
        ),
        "charge-not-stopped": Misconception(
            "The values are right, but your reward carries a gradient. In the loss it would add a term of its own, on "
            "top of the policy gradient. What is a reward to the policy gradient, a number or a function?",
            {"4.8": "penalised = rewards - beta * torch.where(mask, logp - ref_logp, 0).sum(-1)"},
        ),
        "mask-ignored": Misconception(
            "The padding is charged as well: an answer pays for what stands behind its end, and pays more if its batch "
            "has a longer neighbour. Which tokens did the policy choose?",
            {"4.8": "penalised = rewards - beta * (logp - ref_logp).sum(-1).detach()"},
        ),
        "zero-times-nan": Misconception(
            "NaN: you multiply by the mask, and in the padding there may stand minus infinity on both sides. What is "
            "their difference, and what is zero times that? Look for an operation that *chooses*.",
            {"4.8": "penalised = rewards - beta * (mask * (logp - ref_logp)).sum(-1).detach()"},
        ),
        "length-mean": Misconception(
            "You charge the mean over the tokens. A long answer then pays no more than a short one for going just as "
            "far at every token. The log-probability of a whole answer is a sum: what is its KL?",
            {
                "4.8": "penalised = rewards - beta * torch.where(mask, kl_estimate(logp, ref_logp, 'k1'), "
                "0).sum(-1).detach() / mask.sum(-1).clamp(min=1)"
            },
        ),
        "k3-in-reward": Misconception(
            "You charge k3. In the reward its *value* is multiplied with the score, and there the extra terms of k3, "
            "harmless on average, cancel the pull near the reference. Which estimator stands in Eq. (4.8)?",
            {
                "4.8": "penalised = rewards - beta * torch.where(mask, kl_estimate(logp, ref_logp, 'k3'), "
                "0).sum(-1).detach()"
            },
        ),
    },
)
