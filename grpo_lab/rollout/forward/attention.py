"""Attention for the fast paths, in the forms that cost the least memory and time.

- One mask for all layers. In transformers each layer turns a boolean mask into numbers of its own, and keeps them for
  the backward pass: with 24 layers, 24 copies of a B x Q x S tensor.
- The kernels of torch itself, chosen so that none of them plans each shape anew.
"""

from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

_ALIGNMENT = 8  # numbers; a row of the mask that starts elsewhere would be copied by every layer


def additive_mask(
    is_token: Bool[Tensor, "B S"], queries: int, dtype: torch.dtype, heads_per_key: int = 1
) -> Float[Tensor, "B 1 RQ S"]:
    """Additive attention mask: 0 where a query may attend, minus infinity elsewhere.

    A query attends to real tokens up to its own position, and always to itself, so that no row is empty.

    heads_per_key: R, query heads that stand in line behind one another, each with the same Q queries.
    """
    rows, length = is_token.shape
    key = torch.arange(length, device=is_token.device)
    query = key[length - queries :, None]
    allowed = (key <= query) & (is_token[:, None] | (key == query))  # B Q S
    shape = (rows, 1, heads_per_key, queries, aligned_columns(length))
    mask = torch.empty(shape, dtype=dtype, device=is_token.device)[..., :length]
    return mask.fill_(-torch.inf).masked_fill_(allowed[:, None, None], 0).flatten(2, 3)


def aligned_columns(length: int) -> int:
    """Columns in memory of a mask's row, so that each begins where kernels take it without a copy."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def attention_dtype(model) -> torch.dtype:
    """The precision that attention is computed in: autocast's where it is on, else the weights'."""
    device_type = model.device.type
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else model.dtype


def gather_tokens(
    x: Float[Tensor, "1 H N D_h"], index: Int[Tensor, "B S"], dtype: torch.dtype
) -> Float[Tensor, "B H S D_h"]:
    """The keys (or queries, or values) of each head at these tokens of a packed sequence."""
    by_token = x[0].transpose(0, 1).to(dtype).index_select(0, index.flatten())
    return by_token.view(*index.shape, *by_token.shape[1:]).transpose(1, 2)


@contextmanager
def use_attention(model, name: str):
    """Attention by the function that is registered under that name, and by the kernels of torch itself, for a while."""
    previous, model.config._attn_implementation = model.config._attn_implementation, name
    try:
        with _kernels(model.device.type):
            yield
    finally:
        model.config._attn_implementation = previous


def _kernels(device_type: str) -> AbstractContextManager:
    """Restrict attention on a GPU to kernels that take a mask and need no plan: cuDNN plans each shape for 25-35 ms."""
    backends = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(backends) if device_type == "cuda" else nullcontext()
