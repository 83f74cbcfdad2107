"""Attention of the fast paths: with a mask, with one query, in long rows without a mask; the lengths kernels get."""

import inspect
import math
from functools import partial

import pytest
import torch
import torch.nn.attention.varlen
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.config import GRPOConfig
from grpo_lab.rollout.decoding.cache import one_query_attention
from grpo_lab.rollout.forward import attention, packing
from grpo_lab.rollout.forward.attention import (
    BY_ROW,
    LONGEST_MASKED,
    VARLEN,
    additive_mask,
    describe_attention,
    kernel_of_long_rows,
    key_copies,
    varlen_shares_key_heads,
)
from grpo_lab.rollout.forward.model_logprobs import compute_logprobs
from grpo_lab.rollout.forward.packing import packed_hidden, packed_prompts, unique_prefixes
from grpo_lab.rollout.rollout import EncodedPrompts
from grpo_lab.trainer.run.inputs import RunInputs
from tests.support.few_fast import few_fast
from tests.support.known_shape import random_policy
from tests.support.logprob_inputs import logprob_inputs, unequal_rows
from tests.support.sampling import sample
from tests.support.small_policy import make_policy

L, T = 7, 13
# Lengths of the longest prompt and the longest completion of `unequal_rows`.
MAX_L, MAX_T = 9, 14


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

    as_on_a_gpu = partial(attention._without_cudnn, "cuda")
    monkeypatch.setattr(attention, "_without_cudnn", lambda device_type: as_on_a_gpu())
    monkeypatch.setattr(attention, "scaled_dot_product_attention", spy)
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
    model, plain = random_policy("small"), attention.scaled_dot_product_attention
    expected, _ = packed_hidden(model, batch())

    def as_on_a_gpu(*inputs, **arguments):
        return plain(*inputs, **arguments).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", as_on_a_gpu)
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


def literal_varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, **keywords):
    """Attention as the documentation of `varlen_attn` says: sequences by offsets, last query aligned with last key."""
    assert window_size == (-1, 0) and cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert max_q == cu_seq_q.diff().max() and max_k == cu_seq_k.diff().max()
    if not keywords:
        assert query.shape[1] == key.shape[1]
    outputs = []
    for q_start, q_end, k_start, k_end in zip(cu_seq_q, cu_seq_q[1:], cu_seq_k, cu_seq_k[1:], strict=False):
        for number in range(q_end - q_start):
            seen = slice(k_start, k_end - (q_end - q_start - 1 - number))
            heads = []
            for head in range(query.shape[1]):
                shared = head * key.shape[1] // query.shape[1]
                weights = (key[seen, shared] @ query[q_start + number, head] * scale).softmax(0)
                heads.append(weights @ value[seen, shared])
            outputs.append(torch.stack(heads))
    return torch.stack(outputs)


def use_varlen(monkeypatch, shares_key_heads):
    monkeypatch.setattr(attention, "kernel_of_long_rows", lambda *_: VARLEN)
    monkeypatch.setattr(attention, "varlen_shares_key_heads", lambda: shares_key_heads)
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", literal_varlen)


# For each kernel of long rows, a function that lets the package use it.
SET_KERNEL = {
    "by row": lambda monkeypatch: None,
    "varlen": lambda monkeypatch: use_varlen(monkeypatch, True),
    "varlen of torch 2.11": lambda monkeypatch: use_varlen(monkeypatch, False),
}


def values_and_gradients(checkpointing=False):
    model = random_policy("small", dtype=torch.float64)
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    inputs = unequal_rows()
    logp, entropy = compute_logprobs(model, *inputs)
    weights = torch.linspace(-1, 1, logp.numel(), dtype=torch.float64).view_as(logp)
    ((logp - entropy) * weights)[inputs.mask].sum().backward()
    return logp[inputs.mask], entropy[inputs.mask], {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize(("kernel", "checkpointing"), few_fast([(kernel,) for kernel in SET_KERNEL], (False, True)))
def test_long_rows_without_a_mask_equal_masked_rows_with_gradients(kernel, checkpointing, monkeypatch):
    expected = values_and_gradients()
    monkeypatch.setattr(packing, "LONGEST_MASKED", 2)
    monkeypatch.setattr(packing, "additive_mask", None)  # making a mask would fail
    SET_KERNEL[kernel](monkeypatch)
    logp, entropy, gradients = values_and_gradients(checkpointing)
    torch.testing.assert_close((logp, entropy), expected[:2], rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients, expected[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", SET_KERNEL)
def test_the_keys_of_long_prompts_equal_those_of_masked_rows(kernel, monkeypatch):
    model = random_policy("small", dtype=torch.float64)
    prompts = EncodedPrompts(unequal_rows().prompt_ids, unequal_rows().prompt_mask)
    with torch.no_grad():
        expected, index = packed_prompts(model, prompts)
        monkeypatch.setattr(packing, "LONGEST_MASKED", 2)
        SET_KERNEL[kernel](monkeypatch)
        got, same_index = packed_prompts(model, prompts)
    assert torch.equal(index, same_index)
    for layer, other in zip(got.layers, expected.layers, strict=True):
        torch.testing.assert_close((layer.keys, layer.values), (other.keys, other.values), rtol=0, atol=1e-12)


def test_lengths_and_indices_of_rows_against_a_literal_loop():
    mask = unequal_rows().mask
    is_token = torch.cat([torch.arange(MAX_L) >= torch.tensor([[0], [4], [4], [8], [0]]), mask], dim=1)
    prefix_index = torch.arange(is_token.numel()).view_as(is_token).flip(0)
    rows = attention.make_long_rows(prefix_index, is_token, MAX_T - 1, torch.float32)
    query_index, key_index, flat_query_index, query_offsets, key_offsets = [], [], [], [0], [0]
    for row, (index, tokens) in enumerate(zip(prefix_index.tolist(), is_token.tolist(), strict=True)):
        queries = [(i, s) for s, (i, token) in enumerate(zip(index, tokens, strict=True)) if token and s > MAX_L]
        if queries:
            query_index += [i for i, _ in queries]
            flat_query_index += [row * (MAX_T - 1) + s - MAX_L - 1 for _, s in queries]
            key_index += [i for i, token in zip(index, tokens, strict=True) if token]
            query_offsets.append(len(query_index))
            key_offsets.append(len(key_index))
    assert len(query_offsets) == 5  # row 2 has no query
    assert rows.query_index.tolist() == query_index and rows.key_index.tolist() == key_index
    assert rows.query_offsets.tolist() == query_offsets and rows.key_offsets.tolist() == key_offsets
    assert rows.flat_query_index.tolist() == flat_query_index and rows.padded_queries == 5 * (MAX_T - 1)


def test_rows_of_one_token_each_need_no_attention(monkeypatch):
    model, inputs = random_policy("small", dtype=torch.float64), unequal_rows(completion_lengths=(1, 1, 1, 1, 1))
    expected = compute_logprobs(model, *inputs)[0][:, 0]
    monkeypatch.setattr(packing, "LONGEST_MASKED", 2)
    torch.testing.assert_close(compute_logprobs(model, *inputs)[0][:, 0], expected, rtol=0, atol=1e-12)


def test_a_mask_is_made_exactly_for_rows_up_to_the_longest_masked_length(monkeypatch):
    lengths = []
    plain = packing.additive_mask

    def spy(is_token, *arguments):
        lengths.append(is_token.shape[1])
        return plain(is_token, *arguments)

    monkeypatch.setattr(packing, "additive_mask", spy)
    row_length = MAX_L + MAX_T - 1  # the last token is not read
    for longest, expected in (
        (row_length, [MAX_L, row_length]),
        (row_length - 1, [MAX_L]),
        (MAX_L - 1, []),
    ):
        monkeypatch.setattr(packing, "LONGEST_MASKED", longest)
        compute_logprobs(random_policy("small"), *unequal_rows())
        assert lengths == expected
        lengths.clear()


def test_kernel_of_long_rows_follows_device_and_precision_and_is_described():
    half, single = torch.bfloat16, torch.float32
    assert [kernel_of_long_rows(*where) for where in (("cuda", half), ("cuda", torch.float16))] == [VARLEN] * 2
    assert [kernel_of_long_rows(*where) for where in (("cuda", single), ("cpu", half))] == [BY_ROW] * 2
    assert describe_attention(LONGEST_MASKED, "cpu", single) is None
    assert describe_attention(LONGEST_MASKED + 1, "cpu", single).endswith("a call for each row, in float32")


def test_keys_are_copied_where_the_kernel_lets_no_query_heads_share_one(monkeypatch):
    half, single = torch.bfloat16, torch.float32
    parameters = inspect.signature(torch.nn.attention.varlen.varlen_attn).parameters
    assert "window_size" in parameters and varlen_shares_key_heads() == ("enable_gqa" in parameters)
    for shares_key_heads in (True, False):
        monkeypatch.setattr(attention, "varlen_shares_key_heads", lambda shares=shares_key_heads: shares)
        assert key_copies("cuda", half, 7) == (1 if shares_key_heads else 7)
        assert (key_copies("cuda", single, 7), key_copies("cpu", half, 7)) == (7, 1)


def test_a_run_with_long_rows_prints_its_attention_kernel(capsys, monkeypatch):
    model, tokenizer = make_policy()
    for longest, expected in (
        (12, ["attention: rows of more than 12 tokens need no mask: a call for each row, in float32"]),
        (13, []),
    ):
        monkeypatch.setattr(attention, "LONGEST_MASKED", longest)
        config = GRPOConfig(max_completion_length=10, disable_tqdm=True)
        RunInputs(model, tokenizer, [{"prompt": "1+1"}, {"prompt": "1"}], None, config).check_model()
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in printed if line.startswith("attention")] == expected
