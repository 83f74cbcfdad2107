"""A language with so few sequences that expectations can be computed exactly, by listing all of them.

The policy is a table with a row of logits for each prefix. So it is autoregressive like a language model, but the
probabilities after one prefix do not depend on those after another. Notebooks 01 and 02 compare their estimates with
its exact gradient.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.logprobs import token_logprobs
from grpo_lab.policy_gradient import enumerate_sequences


class SmallWorld:
    """All N = V**T sequences of T tokens from a vocabulary of V words, and a policy over them with K logits.

    Args:
        vocabulary: V, the number of words.
        length: T, the number of tokens of a sequence.
        seed: Seed of the initial logits.

    Attributes:
        sequences: All sequences, one per row, (N, T).
        logits: The parameters in float64, one row of V logits for each prefix.
        prefix_index: The row of `logits` that belongs to the first t tokens of each sequence, (N, T).
    """

    def __init__(self, vocabulary: int = 3, length: int = 3, seed: int = 0):
        self.sequences = enumerate_sequences(vocabulary, length)
        self.prefix_index = self._index_prefixes(vocabulary, length)
        num_prefixes = sum(vocabulary**t for t in range(length))
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(
            num_prefixes, vocabulary, generator=generator, dtype=torch.float64, requires_grad=True
        )

    def _index_prefixes(self, vocabulary: int, length: int) -> Int[Tensor, "N T"]:
        """Number all prefixes: shorter ones first, and those of one length as numbers in base V."""
        columns, num_shorter, value = [], 0, torch.zeros(len(self.sequences), dtype=torch.long)
        for t in range(length):
            columns.append(num_shorter + value)
            num_shorter += vocabulary**t
            value = value * vocabulary + self.sequences[:, t]
        return torch.stack(columns, dim=1)

    def logp(self) -> Float[Tensor, "N T"]:
        """Return the log-probability of each token of each sequence under the policy."""
        return token_logprobs(self.logits[self.prefix_index], self.sequences)

    def probabilities(self) -> Float[Tensor, " N"]:
        """Return the probability of each sequence; their sum is 1."""
        return self.logp().sum(-1).exp()

    def sample(self, count: int, seed: int = 0) -> Int[Tensor, " count"]:
        """Sample sequences from the policy, and return their indices in `sequences`."""
        generator = torch.Generator().manual_seed(seed)
        return torch.multinomial(self.probabilities().detach(), count, replacement=True, generator=generator)

    def gradient(self, objective: Float[Tensor, ""]) -> Float[Tensor, " K"]:
        """Return the gradient of a scalar with respect to all K logits, as one vector."""
        return torch.autograd.grad(objective, self.logits, retain_graph=True)[0].flatten()

    def scores(self) -> Float[Tensor, "N K"]:
        """Return the score of each sequence, the gradient of its log-probability with respect to all K logits."""
        return torch.stack([self.gradient(seq_logp) for seq_logp in self.logp().sum(-1)])
