"""Attention for the fast paths, with little memory and time.

- All layers share one mask. In transformers, each layer turns a boolean mask into an additive one and keeps it for the
  backward pass: 24 layers keep 24 copies of a B x Q x S tensor.
- Attention uses only those kernels of torch that need no new plan for each shape.
"""

from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

_ALIGNMENT = 8  # rows of the mask start at multiples of this number of columns; else every layer would copy the mask


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


def attention_dtype(model) -> torch.dtype:
    """Return the precision in which attention is computed: autocast's if it is on, else that of the weights."""
    device_type = model.device.type
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else model.dtype


def gather_tokens(
    x: Float[Tensor, "1 H N D_h"], index: Int[Tensor, "B S"], dtype: torch.dtype
) -> Float[Tensor, "B H S D_h"]:
    """Gather from a packed sequence the keys (or queries, or values) of each head at the tokens with these indices."""
    by_token = x[0].transpose(0, 1).to(dtype).index_select(0, index.flatten())
    return by_token.view(*index.shape, *by_token.shape[1:]).transpose(1, 2)


@contextmanager
def use_attention(model, name: str):
    """Inside this context, let the model compute attention by the function that is registered under `name`."""
    previous, model.config._attn_implementation = model.config._attn_implementation, name
    try:
        with _kernels(model.device.type):
            yield
    finally:
        model.config._attn_implementation = previous


def _kernels(device_type: str) -> AbstractContextManager:
    """Exclude cuDNN's attention kernel on a GPU: it plans each new shape for 25 to 35 ms."""
    backends = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(backends) if device_type == "cuda" else nullcontext()
