"""The decoder for a CPU, which draws from the same distributions as `Decoder` with less work.

A step that reads 32 tokens takes a CPU half as long as one that reads 64. So rows that have drawn the same tokens so
far share one prefix until they part, and rows that have ended leave. Attention reads only the columns that are written.
A step draws one random number per row, not one per token of the vocabulary. With a large model, the vocabulary is
multiplied and searched in blocks, and prefixes keep their place in the cache.

How a step is computed follows from shapes alone, so a resumed run computes the same.
"""

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from torch.nn.functional import pad

from grpo_lab.logprobs import LARGE_VOCABULARY, head_logits
from grpo_lab.rollout.decoding.cache import InPlaceCache, PreallocatedCache, order_keeping_parents
from grpo_lab.rollout.decoding.decoder import Decoder
from grpo_lab.rollout.forward.attention import attention_dtype
from grpo_lab.rollout.model import head_dim

LARGE_PREFIX_BYTES = 2**20  # prefixes that take more bytes in the cache are not copied when others come or go
SEARCH_BLOCK = 128  # number of tokens of a block of the vocabulary


class CpuDecoder(Decoder):
    """The decoder for a CPU: a prefix that several rows share is computed once, and rows that have ended leave."""

    shares_prefixes = True

    def _new_cache(self, num_prefixes: int, num_rows: int, num_columns: int) -> InPlaceCache:
        config = self.model.config
        numbers_per_column = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(config)
        if num_columns * numbers_per_column * attention_dtype(self.model).itemsize < LARGE_PREFIX_BYTES:
            return super()._new_cache(num_prefixes, num_rows, num_columns)
        return PreallocatedCache(self.model, num_prefixes, num_rows, num_columns, self.write_column)

    def _forward(self, keywords: dict) -> Float[Tensor, "M V"]:
        head = self.model.get_output_embeddings()
        is_large = len(head.weight) > LARGE_VOCABULARY
        is_plain = type(head) is torch.nn.Linear and head.bias is None and not self.autocast_weights
        if not (is_large and is_plain):
            return super()._forward(keywords)
        hidden = self.model.base_model(self.token, **keywords).last_hidden_state
        return head_logits(hidden[:, -1], head.weight)

    def run(self, max_steps: int) -> int:
        for steps in range(1, max_steps + 1):
            if steps > 1:
                self.regroup_rows()
            self.cache.num_read_columns = int(self.write_column) + 1  # columns written so far, and that of this step
            self.step()
            self.update_episodes()
            if self.done.all():
                return steps
        return max_steps

    def regroup_rows(self) -> None:
        """Remove the rows that have ended, and give rows that drew different tokens different prefixes."""
        is_active = ~self.done
        vocab_size = self.model.config.vocab_size
        self.rows, self.done = self.rows[is_active], self.done[is_active]
        # An index of a prefix and the token after it, as one number.
        prefix_and_token = self.prefix_index[is_active] * vocab_size + self.sequences[self.rows, self.write_column]
        new_prefixes, self.prefix_index = prefix_and_token.unique(return_inverse=True)
        if isinstance(self.cache, PreallocatedCache):
            order = order_keeping_parents(new_prefixes // vocab_size)
            new_prefixes, self.prefix_index = new_prefixes[order], order.argsort()[self.prefix_index]
        parent, self.token = new_prefixes // vocab_size, new_prefixes[:, None] % vocab_size
        self.representative_row = torch.empty_like(parent).scatter(0, self.prefix_index, self.rows)
        if not torch.equal(parent, torch.arange(len(self.position), device=parent.device)):
            self.position, self.visible = self.position[parent], self.visible[parent]
            self.cache.continue_prefixes(parent)

    def draw(self, log_pi: Float[Tensor, "M V"], pi: Float[Tensor, "M V"]) -> Int[Tensor, " B"]:
        """Draw the next token of every row with one random number per row.

        A random number is drawn for rows that have left as well, so that the draws of the other rows do not change.
        """
        u = torch.rand(self.num_rollout_rows, dtype=torch.float64)
        if self.rows_in_rollout is not None:
            u = u[self.rows_in_rollout]
        return inverse_cdf(pi, u[self.rows], self.prefix_index)


def inverse_cdf(
    pi: Float[Tensor, "M V"], u: Float64[Tensor, " B"], distribution_index: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Draw one token per row with one random number u: the first token whose cumulative probability is above u.

    The M cumulative distributions are stacked into one ascending sequence, number m from m to m + 1, so that one search
    serves all rows.

    Args:
        pi: Probabilities of M distributions; each is scaled here so that its sum is 1.
        u: Uniform random numbers in [0, 1), one per row, in float64: with the 24 bits of a float32, rare tokens would
            be drawn too seldom.
        distribution_index: Index of the distribution that each row draws from, 0 to M - 1.

    Returns:
        Token ids, shape (B,).

    Source: Devroye (1986), "Non-Uniform Random Variate Generation", section III.2.
    """
    vocab_size = pi.shape[1]
    just_below_next = (distribution_index + torch.ones_like(u)).nextafter(torch.zeros_like(u))
    point = torch.minimum(distribution_index + u, just_below_next)  # m + u, which may be rounded up to m + 1
    if vocab_size <= LARGE_VOCABULARY:
        token = torch.searchsorted(_stacked_cdf(pi), point, right=True) - distribution_index * vocab_size
    else:
        # Draw a block, then a token in it: the cumulative sums of all tokens would be ten times the work of the sums of
        # blocks.
        blocks = pad(pi, (0, -vocab_size % SEARCH_BLOCK)).unflatten(1, (-1, SEARCH_BLOCK))
        num_blocks = blocks.shape[1]
        stacked_cdf = _stacked_cdf(blocks.sum(-1))
        block = torch.searchsorted(stacked_cdf, point, right=True) - distribution_index * num_blocks
        block = block.clamp(0, num_blocks - 1)
        index = distribution_index * num_blocks + block
        lower = torch.where(block > 0, stacked_cdf[index - 1], distribution_index)
        u_in_block = ((point - lower) / (stacked_cdf[index] - lower)).clamp(0, 1)
        rows = torch.arange(len(u), device=u.device)
        token = block * SEARCH_BLOCK + inverse_cdf(blocks[distribution_index, block], u_in_block, rows)
    return token.clamp(0, vocab_size - 1)  # only NaN needs the clamp; the check of the log-probabilities reports it


def _stacked_cdf(pi: Float[Tensor, "M V"]) -> Float64[Tensor, " MV"]:
    """Return M cumulative distributions as one ascending sequence, in which number m goes from m to m + 1."""
    cdf = pi.cumsum(-1, dtype=torch.float64)
    offsets = torch.arange(len(cdf), device=cdf.device)[:, None]
    return cdf.div_(cdf[:, -1:].clone()).add_(offsets).flatten()
