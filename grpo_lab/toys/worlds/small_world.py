"""A language so small that nothing has to be sampled to know the truth: every sequence is listed.

The policy is a table: one row of logits for each prefix. So it is autoregressive like a language model, and has as many
parameters as there are choices. Notebooks 01 and 02 check their estimates against its exact gradient.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.logprobs import token_logprobs
from grpo_lab.policy_gradient import enumerate_sequences


class SmallWorld:
    """All N = V**T sequences of T tokens out of V words, and a policy over them.

    Attributes:
        sequences: every sequence, one per row.
        logits: the parameters, one row of V per prefix, float64.
        prefix: the row of the table that holds the logits after the first t tokens of each sequence.
    """

    def __init__(self, vocabulary: int = 3, length: int = 3, seed: int = 0):
        self.sequences = enumerate_sequences(vocabulary, length)
        self.prefix = self._prefix_rows(vocabulary, length)
        prefixes = sum(vocabulary**t for t in range(length))
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(prefixes, vocabulary, generator=generator, dtype=torch.float64, requires_grad=True)

    def _prefix_rows(self, vocabulary: int, length: int) -> Int[Tensor, "N T"]:
        rows, first, number = [], 0, torch.zeros(len(self.sequences), dtype=torch.long)
        for t in range(length):
            rows.append(first + number)
            first += vocabulary**t
            number = number * vocabulary + self.sequences[:, t]
        return torch.stack(rows, dim=1)

    def logp(self) -> Float[Tensor, "N T"]:
        """Log-probability of each token of each sequence under the policy."""
        return token_logprobs(self.logits[self.prefix], self.sequences)

    def probabilities(self) -> Float[Tensor, " N"]:
        """The probability of each whole sequence; together they are one."""
        return self.logp().sum(-1).exp()

    def sample(self, count: int, seed: int = 0) -> Int[Tensor, " count"]:
        """Draw sequences from the policy; returns their indices in `sequences`."""
        generator = torch.Generator().manual_seed(seed)
        return torch.multinomial(self.probabilities().detach(), count, replacement=True, generator=generator)

    def gradient(self, objective: Float[Tensor, ""]) -> Float[Tensor, " K"]:
        """The gradient of a scalar with respect to all K logits, as one vector."""
        return torch.autograd.grad(objective, self.logits, retain_graph=True)[0].flatten()

    def scores(self) -> Float[Tensor, "N K"]:
        """The gradient of the log-probability of each sequence: one row per sequence."""
        seq_logp = self.logp().sum(-1)
        return torch.stack([self.gradient(sequence_logp) for sequence_logp in seq_logp])
