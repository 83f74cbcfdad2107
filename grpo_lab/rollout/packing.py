"""Prompts and their completions in one pass: one sequence that holds each prompt once, and no padding.

The layers work on tokens one by one, except for attention. So all tokens stand in one row, prompts first, and attention
alone takes them apart: the prompts among themselves, and each completion with its prompt. Positions start anew behind
each prompt. A pass over few tokens takes as long as the weights do, and a second pass adds each weight's gradient once
more: hence one.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from grpo_lab.rollout.cache import additive_mask, arithmetic, attention
from grpo_lab.rollout.prompts import positions

NAME = "grpo_lab_packed"


@dataclass(frozen=True)
class Block:
    """Rows that attention takes out of the packed sequence: each of their last Q tokens looks at S of them."""

    place: Int[Tensor, "B S"]  # of each token in the sequence; of padding any, which the mask hides
    mask: Float[Tensor, "B 1 RQ S"]  # for each of the R query heads that share a key head


def packed_hidden(
    model,
    prompt_ids: Int[Tensor, "P L"],
    prompt_mask: Bool[Tensor, "P L"],
    completion_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    prompt_of_row: Int[Tensor, " B"],
) -> Float[Tensor, "N D"]:
    """The last hidden states that predict the N completion tokens under the mask, row by row."""
    used, prompt_of_row = prompt_of_row.unique(return_inverse=True)
    prompt_ids, prompt_mask, length = prompt_ids[used], prompt_mask[used], prompt_mask.shape[1]
    read = mask[:, 1:]  # whether a token predicts another: the last of a completion does not
    is_token = torch.cat([prompt_mask[prompt_of_row], read], dim=1)  # B S
    of_prompt = _numbered(prompt_mask)
    place = torch.cat([of_prompt[prompt_of_row], prompt_mask.sum() + _numbered(read)], dim=1)  # B S
    ids = torch.cat([prompt_ids[prompt_mask], completion_ids[:, :-1][read]])
    position = torch.cat([positions(prompt_mask)[prompt_mask], positions(is_token)[:, length:][read]])
    blocks = [_block(model, of_prompt, prompt_mask, length)]
    if read.any():
        blocks.append(_block(model, place, is_token, read.shape[1]))
    outputs = torch.cat([prompt_mask.flatten(), read.flatten()]).nonzero()[:, 0]  # of the blocks, those of tokens
    _recompute_alike(model)
    with attention(model, NAME):
        packed = {"blocks": blocks, "outputs": outputs}
        out = model.base_model(ids[None], position_ids=position[None], use_cache=False, **packed)
    before = place[:, length - 1 :][mask]  # [aligned]
    return out.last_hidden_state[0].index_select(0, before)


def _numbered(is_token: Bool[Tensor, "R S"]) -> Int[Tensor, "R S"]:
    """Which of the tokens each is, row by row."""
    return (is_token.flatten().cumsum(0) - 1).clamp(min=0).view_as(is_token)


def _block(model, place: Int[Tensor, "B S"], is_token: Bool[Tensor, "B S"], queries: int) -> Block:
    shared = model.config.num_attention_heads // model.config.num_key_value_heads
    mask = additive_mask(is_token, queries, arithmetic(model))
    return Block(place, mask if shared == 1 else mask.repeat(1, 1, shared, 1))


def attend_packed(module, query, key, value, attention_mask, scaling=None, *, blocks, outputs, **_):
    """The R heads that share a key head stand in line as R * Q queries of it, so no key is repeated."""
    (_, heads, _, width), keys, found = query.shape, key.shape[1], []
    for block in blocks:
        rows, queries = len(block.place), block.mask.shape[2] * keys // heads
        asking = _taken(query, block.place[:, -queries:], block.mask.dtype).reshape(rows, keys, -1, width)
        looked_at = (_taken(x, block.place, block.mask.dtype) for x in (key, value))
        out = scaled_dot_product_attention(asking, *looked_at, attn_mask=block.mask, scale=scaling)
        found.append(out.reshape(rows, heads, queries, width).transpose(1, 2).flatten(0, 1))  # B*Q H D_h
    return torch.cat(found).index_select(0, outputs)[None], None


AttentionInterface.register(NAME, attend_packed)


def _taken(x: Float[Tensor, "1 H N W"], place: Int[Tensor, "B S"], dtype: torch.dtype) -> Float[Tensor, "B H S W"]:
    taken = x[0].transpose(0, 1).to(dtype).index_select(0, place.flatten())
    return taken.view(*place.shape, *taken.shape[1:]).transpose(1, 2)


def _recompute_alike(model) -> None:
    """A checkpointed layer is computed again in the backward pass: it then has to attend as it did at first."""
    again = partial(checkpoint, use_reentrant=False, context_fn=partial(_at_first_and_again, model))
    for layer in model.modules():
        if getattr(layer, "gradient_checkpointing", False):
            layer._gradient_checkpointing_func = again


def _at_first_and_again(model):
    return nullcontext(), attention(model, model.config._attn_implementation)
