"""Attention of the fast paths: the mask against a literal one, the memory of masks, and one query against sums."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.rollout.decoding.cache import one_query_attention
from grpo_lab.rollout.forward import attention, masked_rows, packing
from grpo_lab.rollout.forward.masked_rows import additive_mask
from grpo_lab.rollout.forward.packing import packed_hidden, unique_prefixes
from tests.support.known_shape import random_policy
from tests.support.logprob_inputs import logprob_inputs
from tests.support.sampling import sample
from tests.support.small_policy import make_policy

L, T = 7, 13


def batch(vocabulary=4096):
    """Inputs of 3 completions that answer 2 prompts."""
    return logprob_inputs((L, L - 3), (5, T, 1), (0, 1, 1), vocabulary=vocabulary)


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=3), st.integers(1, 9))
def test_a_position_looks_at_tokens_before_it_and_at_itself(is_token, queries):
    got = additive_mask(torch.tensor(is_token), queries, torch.float32)
    assert got.shape == (len(is_token), 1, queries, 9)
    for b, row in enumerate(is_token):
        for q in range(queries):
            own_position = 9 - queries + q
            for k in range(9):
                assert got[b, 0, q, k].item() == (
                    0 if k == own_position or (k < own_position and row[k]) else -math.inf
                )


@given(st.lists(st.lists(st.sampled_from([None, 0, 1]), min_size=5, max_size=5), min_size=1, max_size=6))
def test_rows_share_a_number_exactly_where_all_tokens_up_to_it_are_the_same(rows):
    is_token = torch.tensor([[token is not None for token in row] for row in rows])
    prefix_index, first_index = unique_prefixes(torch.tensor([[token or 0 for token in row] for row in rows]), is_token)
    prefixes = {}
    for b, s in is_token.nonzero().tolist():
        tokens = tuple(token for token in rows[b][: s + 1] if token is not None)
        assert prefixes.setdefault(tokens, (prefix_index[b, s].item(), 5 * b + s))[0] == prefix_index[b, s]
    assert len({number for number, _ in prefixes.values()}) == len(prefixes) == len(first_index)
    assert all(first_index[number] == where for number, where in prefixes.values())


def test_a_row_of_the_mask_starts_where_a_kernel_takes_it_without_a_copy():
    for length in (8, 9, 15, 16):
        mask = additive_mask(torch.ones(2, length, dtype=torch.bool), 3, torch.bfloat16)
        assert all(stride % 8 == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1


@pytest.mark.parametrize("length", [1, 7, 9, 16, 20])
def test_the_grouped_heads_mask_is_aligned_and_equals_the_plain_one(length):
    model, is_token = random_policy("small"), torch.rand(3, length) < 0.7
    queries, heads_per_key = -(-length // 2), 3
    mask = packing._attending_rows(model, torch.zeros(3, length, dtype=torch.long), is_token, queries).mask
    assert all(stride % 8 == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1
    assert torch.equal(mask, additive_mask(is_token, queries, torch.float32).repeat(1, 1, heads_per_key, 1))


def test_all_layers_keep_two_masks_in_the_precision_they_compute_in():
    for dtype, autocast in [(torch.float32, False), (torch.bfloat16, False), (torch.float32, True)]:
        model, inputs = random_policy("small", dtype=dtype), batch()
        saved_masks = []

        def save_mask(tensor, saved_masks=saved_masks):
            if tensor.ndim == 4 and tensor.shape[1] == 1 and tensor.shape[-1] in (L, L + T - 1):
                saved_masks.append((tensor.untyped_storage().data_ptr(), tensor.dtype, tensor))
            return tensor

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            with torch.autograd.graph.saved_tensors_hooks(save_mask, lambda tensor: tensor):
                packed_hidden(model, inputs)
        assert len(saved_masks) == 8 and len({where for where, *_ in saved_masks}) == 2
        assert saved_masks[0][1] == (torch.bfloat16 if autocast else dtype)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recomputed_layers_read_random_state_only_with_dropout(dropout, monkeypatch):
    model, reads, read = random_policy("small"), [], torch.get_rng_state
    model.gradient_checkpointing_enable()
    model.train()
    model.extra = torch.nn.Dropout(dropout)
    monkeypatch.setattr(torch, "get_rng_state", lambda: reads.append(1) or read())
    hidden, _ = packed_hidden(model, batch())
    assert len(reads) == (4 if dropout else 0)
    hidden.sum().backward()


def test_cudnn_attention_is_disabled_in_every_forward_pass(monkeypatch):
    """The kernels of a GPU are chosen in prompts, decoding, log-probabilities and checkpointed layers."""
    seen, plain = [], torch.nn.functional.scaled_dot_product_attention

    def spy(*inputs, **keywords):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return plain(*inputs, **keywords)

    as_on_a_gpu = partial(attention._kernels, "cuda")
    monkeypatch.setattr(attention, "_kernels", lambda device_type: as_on_a_gpu())
    monkeypatch.setattr(masked_rows, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    model, tokenizer = make_policy()
    sample(model, tokenizer)
    sampling = len(seen)
    model.gradient_checkpointing_enable()
    model.train()
    hidden = packed_hidden(model, batch(vocabulary=15))[0]
    forward = len(seen)
    hidden.sum().backward()
    assert 0 < sampling < forward < len(seen) and not any(seen)
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_packed_hidden_states_do_not_depend_on_the_memory_layout_of_attention(monkeypatch):
    """float32 kernels of a GPU return the heads of a token next to each other in memory."""
    model, plain = random_policy("small"), masked_rows.scaled_dot_product_attention
    expected, _ = packed_hidden(model, batch())

    def as_on_a_gpu(*inputs, **arguments):
        return plain(*inputs, **arguments).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(masked_rows, "scaled_dot_product_attention", as_on_a_gpu)
    assert torch.equal(packed_hidden(model, batch())[0], expected)


def test_attention_of_one_query_against_literal_sums():
    torch.manual_seed(0)
    B, H, K, S, D = 2, 6, 3, 8, 5
    query, keys, values = torch.randn(B, H, 1, D), torch.randn(B, K, S, D), torch.randn(B, K, S, D)
    visible = torch.rand(B, S) < 0.6
    visible[:, 2] = True
    mask = torch.zeros(B, 1, H // K, S).masked_fill_(~visible[:, None, None], -torch.inf)
    got, _ = one_query_attention(None, query, keys, values, mask, scaling=0.3)
    assert got.shape == (B, 1, H, D)
    for b in range(B):
        for h in range(H):
            k = h // (H // K)
            weight = [float(visible[b, s]) * (0.3 * query[b, h, 0] @ keys[b, k, s]).exp() for s in range(S)]
            expected = sum(weight[s] * values[b, k, s] for s in range(S)) / sum(weight)
            torch.testing.assert_close(got[b, 0, h], expected)
