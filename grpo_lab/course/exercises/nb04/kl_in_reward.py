import torch

from grpo_lab.course.exercise import INF, Exercise, Misconception, at_scale, drawn, extreme, f64, given, padded
from grpo_lab.kl import kl_in_reward


def _batch(d, B, T):
    return d.normal(B), *d.moved(B, T), d.ragged(B, T)


def _with_holes(d, B, T):
    """NaN and infinities stand where nothing counts."""
    rewards, logp, ref, _ = _batch(d, B, T)
    mask = d.holes(B, T)
    return rewards, padded(logp, mask), padded(ref, mask, -INF), mask


YES = torch.tensor([[True]])

EXERCISE = Exercise(
    function=kl_in_reward,
    points=3,
    minutes=12,
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
