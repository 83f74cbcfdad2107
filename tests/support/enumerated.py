"""A world small enough to list: three words, up to three tokens, one free logit per word and prefix.

Expectations are sums over all sequences, so theorems are checked to rounding. An estimator is unbiased when its
expected gradient, the sum of sg[pi(y)] grad estimate(y) over every y, equals what autograd finds for the objective.
"""

import pytest
import torch

from grpo_lab.logprobs import completion_mask, token_logprobs
from grpo_lab.objective import policy_loss
from grpo_lab.toys.worlds import SmallWorld
from tests.support.agreement import draw

V = 3


class World:
    """Every sequence of T tokens, with a policy, an old policy and a reference as tables of logits by prefix."""

    def __init__(self, T, eos=None, seed=0):
        world = SmallWorld(V, T)
        self.y, self.prefix = world.sequences, world.prefix
        self.mask = torch.ones_like(self.y, dtype=torch.bool) if eos is None else completion_mask(self.y, eos)
        self.theta, self.old, self.ref = (draw(*world.logits.shape, seed=seed + i) for i in range(3))
        self.theta.requires_grad_()
        masked_ids = torch.where(self.mask, self.y + 1, 0).double()
        self.rewards = torch.sin(
            7 * masked_ids @ torch.tensor([1.0, 0.37, 0.11]).double()[:T]
        )  # of the kept tokens alone

    def logp(self, parameters=None):
        return token_logprobs((self.theta if parameters is None else parameters)[self.prefix], self.y)

    def probability(self, parameters=None):
        """The probability of each full row of tokens; what follows an end sums to one, and drops out of sums."""
        return self.logp(parameters).sum(1).exp()

    def gradient(self, objective):
        return torch.autograd.grad(objective, self.theta)[0]

    def exact(self):
        return self.gradient((self.probability() * self.rewards).sum())

    def row_losses(self, advantages, **keywords):
        """`policy_loss` of each sequence by itself, sampled by the old policy."""
        logp, old, ref = self.logp(), self.logp(self.old), self.logp(self.ref)
        rows = [[i] for i in range(len(self.y))]
        return torch.stack(
            [policy_loss(logp[i], advantages[i], self.mask[i], old[i], ref[i], **keywords)[0] for i in rows]
        )


# Tokens, and the word that ends a sequence. No test changes a world that it shares.
SIZES = [(1, None), (2, None), (3, None), (3, 0)]
everywhere = pytest.mark.parametrize("world", [World(*size) for size in SIZES], ids=map(str, SIZES))
