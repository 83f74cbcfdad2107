"""The policy gradient, estimated from samples and computed exactly: the mathematics of notebook 01.

A sequence y of T tokens is one trajectory. Its probability is a product over its tokens, and its reward comes at the
end. If there are few sequences (V^T), nothing has to be sampled: `enumerate_sequences` lists all of them, and
expectations are sums.

Invalid arguments raise a ValueError that names the argument.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import check_at_least, check_dtype, check_shapes


def sequence_logprob(logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    r"""Compute the log-probability of each whole completion: the sum over its tokens.

    \log \pi(y_b) = \sum_t m_{b,t} \log \pi_{b,t} \tag{1.3}

    Args:
        logp: Log-probabilities of the sampled tokens. Values where the mask is False have no effect, infinities and NaN
            included.
        mask: m, True where a token belongs to the completion.

    Returns:
        The log-probability in nats; zero for a completion without tokens.

    Source: the product rule of probability; a language model is autoregressive.
    """
    check_shapes(logp=(logp, "B T"), mask=(mask, "B T"))
    check_dtype("mask", mask, "bool")
    seq_logp = torch.where(mask, logp, 0).sum(-1)  # B (1.3)
    return seq_logp


def reinforce_loss(seq_logp: Float[Tensor, " B"], weights: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    r"""Compute the loss whose gradient is minus the Monte-Carlo estimate of the policy gradient.

    L = -\frac{1}{B} \sum_b w_b \log \pi(y_b) \tag{1.10}

    The value of this loss means nothing. With w = 1 it is supervised fine-tuning on the model's own samples, with w = R
    it is REINFORCE, and with w = R - b it is REINFORCE with a baseline.

    Args:
        seq_logp: Log-probability of each sampled sequence, with a gradient into the policy.
        weights: w, one number for each sequence; no gradient flows into them.

    Source: Williams (1992), "Simple statistical gradient-following algorithms", sections 4 and 5.
    """
    check_shapes(seq_logp=(seq_logp, "B"), weights=(weights, "B"))
    loss = -(weights.detach() * seq_logp).mean()  # scalar (1.10)
    return loss


def expected_reward(seq_logp: Float[Tensor, " N"], rewards: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    r"""Compute the exact expected reward of the policy: a sum over all sequences.

    J = \sum_y \pi(y) R(y) \tag{1.4}

    Args:
        seq_logp: Log-probability of *every* sequence, in the order of `enumerate_sequences`.
        rewards: R, the reward of each sequence.

    Source: the definition of the objective; Sutton and Barto, section 13.2.
    """
    check_shapes(seq_logp=(seq_logp, "N"), rewards=(rewards, "N"))
    objective = (seq_logp.exp() * rewards).sum()  # scalar (1.4)
    return objective


def score_function_objective(seq_logp: Float[Tensor, " N"], rewards: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    r"""Compute the objective whose gradient is the exact expectation of the REINFORCE estimate.

    \bar J = \sum_y \mathrm{sg}[\pi(y)] \, R(y) \log \pi(y) \tag{1.11}

    The gradient of this objective is E[R grad log pi]. By the log-derivative trick it equals the gradient of the
    expected reward, Eq. (1.4). The objective is to be maximised, so there is no minus sign.

    Args:
        seq_logp: Log-probability of every sequence.
        rewards: R, the reward of each sequence: plain numbers, without a gradient.
    """
    check_shapes(seq_logp=(seq_logp, "N"), rewards=(rewards, "N"))
    objective = (seq_logp.detach().exp() * rewards * seq_logp).sum()  # scalar (1.11)
    return objective


def enumerate_sequences(vocabulary: int, length: int) -> Int[Tensor, "N T"]:
    """List every sequence of `length` tokens, in lexicographic order: N = vocabulary**length rows, T = length."""
    check_at_least("vocabulary", vocabulary, 1)
    check_at_least("length", length, 1)
    return torch.cartesian_prod(*[torch.arange(vocabulary)] * length).reshape(-1, length)
