"""The attention mask of a scored batch: made once, in the form that costs the least memory.

transformers hands each layer a boolean mask, and each layer turns it into numbers of its own and keeps them for the
backward pass: with 24 layers, 24 copies of a B x Q x S tensor. Here the numbers are made once and all layers keep the
same ones. Where nothing is masked but the future, torch's flash kernel needs no mask at all, but on a card
it takes only half precision, and not on every card: elsewhere torch would fall back, without a word, to a kernel that
stores the attention of every head, S x S numbers each. There the mask is given all the same.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention

from grpo_lab.rollout.ways import head_width, ways_of

_ALIGNED = 8  # numbers; a row of the mask that starts elsewhere would be copied by every layer


def attention_mask(model, is_token: Bool[Tensor, "B S"], queries: int) -> Int[Tensor, "B S"] | Float[Tensor, "B 1 Q S"]:
    """What the last `queries` of S positions may look at, in a form that a transformers model takes.

    Args:
        model: its device, its dtype and autocast decide which kernel there is and in which precision it works.
        is_token: shape (B, S); False at padding.
        queries: Q, the positions that are computed; the S - Q before them are in a cache.

    Returns:
        The usual mask of shape (B, S), if nothing has to be masked but the future and a kernel knows that by itself;
        and for models whose layers need masks of their own, such as those of sliding windows, which they make of it.
        Otherwise what is added to the attention scores: 0 where a position may look, minus infinity elsewhere.
    """
    dtype = arithmetic(model)
    if not ways_of(model).one_mask:
        return is_token.long()
    if queries == is_token.shape[1] and has_flash(model, dtype) and is_token.all():
        return is_token.long()
    return additive_mask(is_token, queries, dtype)


def additive_mask(is_token: Bool[Tensor, "B S"], queries: int, dtype: torch.dtype) -> Float[Tensor, "B 1 Q S"]:
    """0 where a position may look: at real tokens up to itself, and always at itself, so that no row is empty."""
    rows, length = is_token.shape
    key = torch.arange(length, device=is_token.device)
    query = key[length - queries :, None]
    allowed = (key <= query) & (is_token[:, None] | (key == query))  # B Q S
    mask = torch.empty(rows, 1, queries, -(-length // _ALIGNED) * _ALIGNED, dtype=dtype, device=is_token.device)
    return mask[..., :length].fill_(-torch.inf).masked_fill_(allowed[:, None], 0)


def arithmetic(model) -> torch.dtype:
    """The precision that attention is computed in: autocast's where it is on, else the weights'."""
    kind = model.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype


def has_flash(model, dtype: torch.dtype) -> bool:
    """Whether attention without a mask stores no scores: off a card always, on one if torch's flash kernel takes it.

    Torch is asked about tensors of the model's shapes: the answer depends on the card, on the width of a head, on
    gradients, on the system that torch was built for, and on what the user has switched off.
    """
    if model.device.type != "cuda":
        return True
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    one = torch.empty(1, 1, 1, head_width(config), device=model.device, dtype=dtype, requires_grad=True)
    query, key = (one.expand(1, n, _ALIGNED, -1) for n in (heads, groups))
    return can_use_flash_attention(SDPAParams(query, key, key, None, 0.0, True, heads != groups))
