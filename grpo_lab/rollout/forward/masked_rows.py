"""Attention of rows with a mask, for all but long rows (`long_rows.py`).

All layers share one mask. In transformers, each layer turns a boolean mask into an additive one and keeps it for the
backward pass: 24 layers keep 24 copies of a B x Q x S tensor.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from grpo_lab.rollout.forward.attention import gather_tokens

_ALIGNMENT = 8  # rows of the mask start at multiples of this number of columns; else every layer would copy the mask


class MaskedRows(NamedTuple):
    """Rows of tokens of a packed sequence; each token attends to itself and the earlier tokens of its row.

    The last Q tokens of a row are its queries. The R query heads that share a key head are stacked, so no key is
    repeated.
    """

    token_index: Int[Tensor, "B S"]  # index of each token in the packed sequence; any number at padding
    mask: Float[Tensor, "B 1 RQ S"]  # added to the scores; hides padding and later tokens

    def attend(self, query, key, value, scaling: float | None) -> Float[Tensor, "BQ H D_h"]:
        """Return the output of attention for each query, one row after the other."""
        heads, key_heads, head_dim = query.shape[1], key.shape[1], query.shape[3]
        rows = len(self.token_index)
        num_queries = self.mask.shape[2] * key_heads // heads
        gathered_queries = gather_tokens(query, self.token_index[:, -num_queries:], self.mask.dtype)
        gathered_queries = gathered_queries.reshape(rows, key_heads, -1, head_dim)
        keys, values = (gather_tokens(x, self.token_index, self.mask.dtype) for x in (key, value))
        out = scaled_dot_product_attention(gathered_queries, keys, values, attn_mask=self.mask, scale=scaling)
        return out.reshape(rows, heads, num_queries, head_dim).transpose(1, 2).flatten(0, 1)  # B*Q H D_h


def additive_mask(
    is_token: Bool[Tensor, "B S"], num_queries: int, dtype: torch.dtype, heads_per_key: int = 1
) -> Float[Tensor, "B 1 RQ S"]:
    """Return the additive attention mask: 0 where a query may attend, minus infinity elsewhere.

    A query attends to the tokens up to its own position, and always to itself, so that no row of the mask is empty.

    Args:
        is_token: False at padding.
        num_queries: Q, number of queries: the last Q columns of each row.
        dtype: The precision of the mask.
        heads_per_key: R, number of query heads that share a key head. The mask repeats its Q rows for each of them.
    """
    rows, length = is_token.shape
    key = torch.arange(length, device=is_token.device)
    query = key[length - num_queries :, None]
    allowed = (key <= query) & (is_token[:, None] | (key == query))  # B Q S
    shape = (rows, 1, heads_per_key, num_queries, aligned_columns(length))
    mask = torch.empty(shape, dtype=dtype, device=is_token.device)[..., :length]
    return mask.fill_(-torch.inf).masked_fill_(allowed[:, None, None], 0).flatten(2, 3)


def aligned_columns(length: int) -> int:
    """Return the number of columns that a row of the mask takes in memory, so that kernels need no copy of it."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT
