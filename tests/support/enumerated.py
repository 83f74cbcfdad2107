"""Enumerate all sequences of up to three tokens from a vocabulary of three, with one free logit per token and prefix.

Expectations are sums over all sequences, so theorems are checked up to rounding. An estimator is unbiased if its
expected gradient, the sum of sg[pi(y)] grad estimate(y) over all y, equals the gradient of the objective by autograd.
"""

import pytest
import torch

from grpo_lab.logprobs import completion_mask, token_logprobs
from grpo_lab.objective import policy_loss
from grpo_lab.toys.worlds import SmallWorld
from tests.support.agreement import draw

V = 3


class SequenceSpace:
    """All sequences of T tokens, and tables of logits by prefix for a policy, an old policy and a reference."""

    def __init__(self, T, eos=None, seed=0):
        small_world = SmallWorld(V, T)
        self.y, self.prefix_index = small_world.sequences, small_world.prefix_index
        self.mask = torch.ones_like(self.y, dtype=torch.bool) if eos is None else completion_mask(self.y, eos)
        self.theta, self.old, self.ref = (draw(*small_world.logits.shape, seed=seed + i) for i in range(3))
        self.theta.requires_grad_()
        masked_ids = torch.where(self.mask, self.y + 1, 0).double()
        # The reward depends only on the tokens up to the first end.
        self.rewards = torch.sin(7 * masked_ids @ torch.tensor([1.0, 0.37, 0.11]).double()[:T])

    def logp(self, parameters=None):
        return token_logprobs((self.theta if parameters is None else parameters)[self.prefix_index], self.y)

    def probability(self, parameters=None):
        """Return the probability of each row of T tokens; in sums over all rows, the tokens after an end sum to one."""
        return self.logp(parameters).sum(1).exp()

    def gradient(self, objective):
        return torch.autograd.grad(objective, self.theta)[0]

    def exact(self):
        return self.gradient((self.probability() * self.rewards).sum())

    def row_losses(self, advantages, **keywords):
        """Return the `policy_loss` of each sequence alone, sampled by the old policy."""
        logp, old, ref = self.logp(), self.logp(self.old), self.logp(self.ref)
        rows = [[i] for i in range(len(self.y))]
        return torch.stack(
            [policy_loss(logp[i], advantages[i], self.mask[i], old[i], ref[i], **keywords)[0] for i in rows]
        )


# Numbers of tokens, and the token that ends a sequence. No test changes the shared instances.
SIZES = [(1, None), (2, None), (3, None), (3, 0)]
each_size = pytest.mark.parametrize("space", [SequenceSpace(*size) for size in SIZES], ids=map(str, SIZES))
