"""Prompts and completions in one forward pass: a packed sequence holds each common prefix once, without padding.

The hidden states of a token depend only on the token and on those before it. So rows that begin with the same tokens
share them up to where they part: the chat template, the prompt of a group, the first words of its completions.

`unique_prefixes` numbers the prefixes of all rows. The packed sequence has one token for each: the last token of the
prefix. All operations but attention treat each token alone, so they take the packed sequence as it is. Attention
(`PackedAttention`) gathers rows from it again: the prompts in one block, and the completions with their prompts in
another.
"""

from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, DynamicCache

from grpo_lab.rollout.forward.attention import (
    LONGEST_MASKED,
    LongRows,
    MaskedRows,
    additive_mask,
    attention_dtype,
    make_long_rows,
    use_attention,
)
from grpo_lab.rollout.rollout import EncodedPrompts, LogprobInputs

PACKED_ATTENTION = "grpo_lab_packed"  # the name of `attend_packed` in transformers' registry


class PackedAttention(NamedTuple):
    """Attention in a packed sequence: each token attends to the earlier tokens of its row, in one of the blocks."""

    blocks: list[MaskedRows | LongRows]
    output_index: Int[Tensor, " M"]  # index of the output of each token among the outputs of all blocks


def packed_hidden(model, inputs: LogprobInputs) -> tuple[Float[Tensor, "M D"], Int[Tensor, "B T"]]:
    """Compute the last hidden state after each of M prefixes, and find the prefix that predicts each token.

    Returns:
        hidden: The last hidden states, shape (M, D).
        predictor_index: Index of the hidden state that predicts each token of the completions, shape (B, T); undefined
            where the mask is False.
    """
    used_prompts, prompt_of_row = inputs.prompt_of_row.unique(return_inverse=True)
    prompt_ids = inputs.prompt_ids[used_prompts]
    prompt_mask = inputs.prompt_mask[used_prompts]
    length = prompt_mask.shape[1]  # L
    is_input = inputs.mask[:, 1:]  # the last token of a row is not read, since it predicts no other
    ids = torch.cat([prompt_ids[prompt_of_row], inputs.completion_ids[:, :-1]], dim=1)  # B S
    is_token = torch.cat([prompt_mask[prompt_of_row], is_input], dim=1)  # B S
    prefix_index, first_index = unique_prefixes(ids, is_token)
    # One block with each prompt once, and one with the completions, each after its prompt.
    prompt_prefixes = torch.zeros_like(prompt_ids).index_put((prompt_of_row,), prefix_index[:, :length])
    blocks = [_attending_rows(model, prompt_prefixes, prompt_mask, length)]
    if is_input.shape[1] > 0:
        blocks.append(_attending_rows(model, prefix_index, is_token, is_input.shape[1]))
    # The outputs of attention come block by block: here is the index of the output of each token of each row.
    sizes = [prompt_ids.numel(), is_input.numel()]
    prompt_outputs, completion_outputs = torch.arange(sum(sizes), device=ids.device).split(sizes)
    prompt_outputs = prompt_outputs.view_as(prompt_ids)[prompt_of_row]
    output_index = torch.cat([prompt_outputs, completion_outputs.view_as(is_input)], dim=1)  # B S
    attention = PackedAttention(blocks, output_index.take(first_index))
    _recompute_with_same_attention(model)
    hidden = _forward(model, ids, is_token, first_index, attention, use_cache=False)
    predictor_index = prefix_index[:, length - 1 :]  # [aligned]
    return hidden, predictor_index


class PromptCache(NamedTuple):
    """The keys and values of P prompts, stored once for each of their M different prefixes."""

    packed_cache: DynamicCache  # keys and values of the last token of each prefix
    prefix_index: Int[Tensor, "P L"]  # index of the prefix that each token of the prompts ends; undefined at padding


def packed_prompts(model, prompts: EncodedPrompts) -> PromptCache:
    """Compute the keys and values of prompts, computing each common prefix only once."""
    prefix_index, first_index = unique_prefixes(*prompts)
    cache = DynamicCache(config=model.config)
    # All tokens are queries of one block, so the output of a token has the index of the token in the flattened ids.
    blocks = [_attending_rows(model, prefix_index, prompts.mask, prefix_index.shape[1])]
    attention = PackedAttention(blocks, output_index=first_index)
    _forward(model, *prompts, first_index, attention, past_key_values=cache, use_cache=True)
    return PromptCache(cache, prefix_index)


def _forward(
    model,
    ids: Int[Tensor, "B S"],
    is_token: Bool[Tensor, "B S"],
    first_index: Int[Tensor, " M"],
    attention: PackedAttention,
    **keywords,
) -> Float[Tensor, "M D"]:
    """Return the last hidden states of the packed sequence, which consists of the last token of each prefix."""
    with use_attention(model, PACKED_ATTENTION):
        # Padding is not counted, so padding on the left does not shift positions.
        position_ids = (is_token.long().cumsum(-1) - 1).take(first_index)[None]
        packed_ids = ids.take(first_index)[None]
        # transformers passes keyword arguments that it does not know to the attention function, `attend_packed`.
        keywords["packed_attention"] = attention
        return model.base_model(packed_ids, position_ids=position_ids, **keywords).last_hidden_state[0]


def unique_prefixes(
    ids: Int[Tensor, "B S"], is_token: Bool[Tensor, "B S"]
) -> tuple[Int[Tensor, "B S"], Int[Tensor, " M"]]:
    """Number the prefixes of rows; two rows have the same number at a token if all their tokens up to it are equal.

    Returns:
        prefix_index: The number of the prefix that ends at each token, shape (B, S); undefined at padding.
        first_index: Where the last token of each prefix first occurs in the flattened ids, shape (M,).
    """
    tokens_first = (~is_token).int().argsort(dim=1, stable=True)
    aligned = ids.masked_fill(~is_token, -1).gather(1, tokens_first)
    sorted_rows, row_index = aligned.unique(dim=0, return_inverse=True)  # rows with a common prefix are neighbours
    parted = (sorted_rows[1:] != sorted_rows[:-1]).cumsum(1) > 0  # [parted]
    is_new = torch.cat([torch.ones_like(sorted_rows[:1], dtype=torch.bool), parted]) & (sorted_rows >= 0)
    number = is_new.flatten().cumsum(0).view_as(is_new) - 1
    aligned_index = number.where(is_new, 0).cummax(0).values[row_index]
    prefix_index = torch.zeros_like(ids).scatter(1, tokens_first, aligned_index)
    num_prefixes = int(is_new.sum())
    token_index = torch.arange(ids.numel(), device=ids.device)
    first_index = token_index.new_full((num_prefixes + 1,), ids.numel())  # the last entry is for padding
    target = prefix_index.where(is_token, num_prefixes).flatten()
    return prefix_index, first_index.scatter_reduce(0, target, token_index, "amin")[:num_prefixes]


def _attending_rows(
    model, prefix_index: Int[Tensor, "B S"], is_token: Bool[Tensor, "B S"], num_queries: int
) -> MaskedRows | LongRows:
    """Return the rows of one block, whose queries are the last `num_queries` columns; long rows have no mask."""
    if is_token.shape[1] > LONGEST_MASKED:
        return make_long_rows(prefix_index, is_token, num_queries, attention_dtype(model))
    heads_per_key = model.config.num_attention_heads // model.config.num_key_value_heads
    mask = additive_mask(is_token, num_queries, attention_dtype(model), heads_per_key)  # B 1 R*Q S
    return MaskedRows(prefix_index, mask)


def attend_packed(module, query, key, value, attention_mask, scaling=None, *, packed_attention: PackedAttention, **_):
    """Return the output of attention for each token; transformers calls this function in each layer."""
    block_outputs = [block.attend(query, key, value, scaling) for block in packed_attention.blocks]
    return torch.cat(block_outputs).index_select(0, packed_attention.output_index)[None], None


AttentionInterface.register(PACKED_ATTENTION, attend_packed)


def _recompute_with_same_attention(model) -> None:
    """Let layers with gradient checkpointing use the same attention when the backward pass computes them again.

    Without dropout, the random state is not saved: reading it would wait for the device.
    """
    has_dropout = any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    checkpoint_layer = partial(
        checkpoint,
        context_fn=partial(_checkpoint_contexts, model),
        use_reentrant=False,
        preserve_rng_state=has_dropout,
    )
    for layer in model.modules():
        if getattr(layer, "gradient_checkpointing", False):
            layer._gradient_checkpointing_func = checkpoint_layer


def _checkpoint_contexts(model):
    """Return the context of the forward pass, and the context of its repetition in the backward pass."""
    return nullcontext(), use_attention(model, model.config._attn_implementation)
