"""What all attention functions of the fast paths share: precision, kernels, and tokens gathered from a packed sequence.

Attention uses only those kernels of torch that need no new plan for each shape.
"""

from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def attention_dtype(model) -> torch.dtype:
    """Return the precision in which attention is computed: autocast's if it is on, else that of the weights."""
    device_type = model.device.type
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else model.dtype


def select_tokens(
    x: Float[Tensor, "1 H N D_h"], index: Int[Tensor, " M"], dtype: torch.dtype
) -> Float[Tensor, "M H D_h"]:
    """Select from a packed sequence the keys (or queries, or values) of all heads at the tokens with these indices."""
    return x[0].transpose(0, 1).to(dtype).index_select(0, index)


def gather_tokens(
    x: Float[Tensor, "1 H N D_h"], index: Int[Tensor, "B S"], dtype: torch.dtype
) -> Float[Tensor, "B H S D_h"]:
    """Gather rows of tokens from a packed sequence, as `select_tokens` does, in the form that kernels of torch take."""
    by_token = select_tokens(x, index.flatten(), dtype)
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
