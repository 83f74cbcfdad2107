"""Prompts and their completions in one pass: one sequence that holds each beginning of a row once, and no padding.

The layers work on tokens one by one, but for attention, and what they make of a token depends on those before it alone.
So rows share the tokens up to where they part: the chat template, the prompt of a group, the first words of its
completions. Attention alone takes them apart: the prompts among themselves, and each completion with its prompt.
"""

from contextlib import nullcontext
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, DynamicCache

from grpo_lab.rollout.cache import additive_mask, arithmetic, attention, taken
from grpo_lab.rollout.prompts import positions

NAME = "grpo_lab_packed"


def packed_hidden(
    model,
    prompt_ids: Int[Tensor, "P L"],
    prompt_mask: Bool[Tensor, "P L"],
    completion_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    prompt_of_row: Int[Tensor, " B"],
) -> tuple[Float[Tensor, "M D"], Int[Tensor, " N"]]:
    """The last hidden state after each beginning of a row, and which of them predicts each token under the mask."""
    used, prompt_of_row = prompt_of_row.unique(return_inverse=True)
    prompt_ids, prompt_mask = prompt_ids[used], prompt_mask[used]
    length, read = prompt_mask.shape[1], mask[:, 1:]  # the last token of a row predicts no other
    ids = torch.cat([prompt_ids[prompt_of_row], completion_ids[:, :-1]], dim=1)  # B S
    is_token = torch.cat([prompt_mask[prompt_of_row], read], dim=1)  # B S
    place, first = beginnings(ids, is_token)
    of_prompt = torch.zeros_like(prompt_ids).index_put((prompt_of_row,), place[:, :length])
    blocks = [_block(model, of_prompt, prompt_mask, length)]
    if read.any():
        blocks.append(_block(model, place, is_token, read.shape[1]))
    sizes = [prompt_ids.numel(), read.numel()]
    made = torch.arange(sum(sizes), device=ids.device).split(sizes)  # what attention returns, block by block
    made = torch.cat([made[0].view_as(prompt_ids)[prompt_of_row], made[1].view_as(read)], dim=1)  # B S
    _recompute_alike(model)
    hidden = _read(model, ids, is_token, first, blocks=blocks, outputs=made.take(first), use_cache=False)
    before = place[:, length - 1 :][mask]  # [aligned]
    return hidden, before


def packed_prompts(
    model, prompt_ids: Int[Tensor, "P K"], prompt_mask: Bool[Tensor, "P K"]
) -> tuple[DynamicCache, Int[Tensor, "P K"]]:
    """Keys and values of the beginnings of prompts, and which of them each token has."""
    place, first = beginnings(prompt_ids, prompt_mask)
    made, blocks = DynamicCache(config=model.config), [_block(model, place, prompt_mask, place.shape[1])]
    _read(model, prompt_ids, prompt_mask, first, blocks=blocks, outputs=first, past_key_values=made, use_cache=True)
    return made, place


def _read(model, ids, is_token, first, **keywords) -> Float[Tensor, "M D"]:
    with attention(model, NAME):
        where = {"position_ids": positions(is_token).take(first)[None]}
        return model.base_model(ids.take(first)[None], **where, **keywords).last_hidden_state[0]


def beginnings(ids: Int[Tensor, "B S"], is_token: Bool[Tensor, "B S"]) -> tuple[Int[Tensor, "B S"], Int[Tensor, " M"]]:
    """Number what rows begin with: rows have the same number at a token if all tokens up to it are the same.

    Returns:
        The number at each token (at padding it means nothing); and where each number comes first in the flattened ids.
    """
    tokens_first = (~is_token).int().argsort(dim=1, stable=True)
    aligned = ids.masked_fill(~is_token, -1).gather(1, tokens_first)
    distinct, row = aligned.unique(dim=0, return_inverse=True)  # in order: those that begin alike are neighbours
    parted = (distinct[1:] != distinct[:-1]).cumsum(1) > 0  # [parted]
    new = torch.cat([torch.ones_like(distinct[:1], dtype=torch.bool), parted]) & (distinct >= 0)
    number = new.flatten().cumsum(0).view_as(new) - 1
    of_row = number.where(new, 0).cummax(0).values[row]
    place = torch.zeros_like(ids).scatter(1, tokens_first, of_row)
    anywhere = torch.arange(ids.numel(), device=ids.device).view_as(ids)[is_token]
    first = anywhere.new_full((int(new.sum()),), ids.numel()).scatter_reduce(0, place[is_token], anywhere, "amin")
    return place, first


def _block(model, place: Int[Tensor, "B S"], is_token: Bool[Tensor, "B S"], queries: int) -> tuple[Tensor, Tensor]:
    shared = model.config.num_attention_heads // model.config.num_key_value_heads
    mask = additive_mask(is_token, queries, arithmetic(model))
    return place, mask if shared == 1 else mask.repeat(1, 1, shared, 1)  # B 1 R*Q S


def attend_packed(module, query, key, value, attention_mask, scaling=None, *, blocks, outputs, **_):
    """The R heads that share a key head stand in line as R * Q queries of it, so no key is repeated.

    A block: rows of tokens, by their places in the sequence (any for padding, which the mask hides); the last Q ask.
    """
    (_, heads, _, width), keys, found = query.shape, key.shape[1], []
    for place, mask in blocks:
        rows, queries = len(place), mask.shape[2] * keys // heads
        asking = taken(query, place[:, -queries:], mask.dtype).reshape(rows, keys, -1, width)
        looked_at = (taken(x, place, mask.dtype) for x in (key, value))
        out = scaled_dot_product_attention(asking, *looked_at, attn_mask=mask, scale=scaling)
        found.append(out.reshape(rows, heads, queries, width).transpose(1, 2).flatten(0, 1))  # B*Q H D_h
    return torch.cat(found).index_select(0, outputs)[None], None


AttentionInterface.register(NAME, attend_packed)


def _recompute_alike(model) -> None:
    """A checkpointed layer is computed again in the backward pass: it then has to attend as it did at first."""
    again = partial(checkpoint, use_reentrant=False, context_fn=partial(_at_first_and_again, model))
    for layer in model.modules():
        if getattr(layer, "gradient_checkpointing", False):
            layer._gradient_checkpointing_func = again


def _at_first_and_again(model):
    return nullcontext(), attention(model, model.config._attn_implementation)
