"""Attention of long rows without a mask equals that with a mask, in float64; the lengths that kernels get."""

import inspect

import pytest
import torch
import torch.nn.attention.varlen

from grpo_lab.config import GRPOConfig
from grpo_lab.rollout.forward import long_rows, packing
from grpo_lab.rollout.forward.long_rows import (
    BY_ROW,
    LONGEST_MASKED,
    VARLEN,
    describe_attention,
    kernel_of_long_rows,
    key_copies,
    varlen_shares_key_heads,
)
from grpo_lab.rollout.forward.model_logprobs import compute_logprobs
from grpo_lab.rollout.forward.packing import packed_prompts
from grpo_lab.rollout.inputs import EncodedPrompts
from grpo_lab.trainer.run.inputs import RunInputs, check_run_inputs
from tests.support.few_fast import few_fast
from tests.support.known_shape import random_policy
from tests.support.logprob_inputs import unequal_rows
from tests.support.small_policy import make_policy

L, T = 9, 14  # lengths of the longest prompt and the longest completion of `unequal_rows`


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
    monkeypatch.setattr(long_rows, "kernel_of_long_rows", lambda *_: VARLEN)
    monkeypatch.setattr(long_rows, "varlen_shares_key_heads", lambda: shares_key_heads)
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
    is_token = torch.cat([torch.arange(L) >= torch.tensor([[0], [4], [4], [8], [0]]), mask], dim=1)
    prefix_index = torch.arange(is_token.numel()).view_as(is_token).flip(0)
    rows = long_rows.make_long_rows(prefix_index, is_token, T - 1, torch.float32)
    query_index, key_index, flat_query_index, query_offsets, key_offsets = [], [], [], [0], [0]
    for row, (index, tokens) in enumerate(zip(prefix_index.tolist(), is_token.tolist(), strict=True)):
        queries = [(i, s) for s, (i, token) in enumerate(zip(index, tokens, strict=True)) if token and s > L]
        if queries:
            query_index += [i for i, _ in queries]
            flat_query_index += [row * (T - 1) + s - L - 1 for _, s in queries]
            key_index += [i for i, token in zip(index, tokens, strict=True) if token]
            query_offsets.append(len(query_index))
            key_offsets.append(len(key_index))
    assert len(query_offsets) == 5  # row 2 has no query
    assert rows.query_index.tolist() == query_index and rows.key_index.tolist() == key_index
    assert rows.query_offsets.tolist() == query_offsets and rows.key_offsets.tolist() == key_offsets
    assert rows.flat_query_index.tolist() == flat_query_index and rows.padded_queries == 5 * (T - 1)


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
    row_length = L + T - 1  # the last token is not read
    for longest, expected in ((row_length, [L, row_length]), (row_length - 1, [L]), (L - 1, [])):
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
        monkeypatch.setattr(long_rows, "varlen_shares_key_heads", lambda shares=shares_key_heads: shares)
        assert key_copies("cuda", half, 7) == (1 if shares_key_heads else 7)
        assert (key_copies("cuda", single, 7), key_copies("cpu", half, 7)) == (7, 1)


def test_a_run_with_long_rows_prints_its_attention_kernel(capsys, monkeypatch):
    model, tokenizer = make_policy()
    for longest, expected in (
        (12, ["attention: rows of more than 12 tokens need no mask: a call for each row, in float32"]),
        (13, []),
    ):
        monkeypatch.setattr(long_rows, "LONGEST_MASKED", longest)
        config = GRPOConfig(max_completion_length=10, disable_tqdm=True)
        check_run_inputs(RunInputs(model, tokenizer, [{"prompt": "1+1"}, {"prompt": "1"}], None, config))
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in printed if line.startswith("attention")] == expected
