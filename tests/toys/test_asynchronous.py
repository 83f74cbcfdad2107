"""Tests of grpo_lab.toys.asynchronous against literal loops, and of properties that hold for all inputs."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.objective import policy_loss
from grpo_lab.toys.asynchronous import (
    H100,
    Gpu,
    Replica,
    completion_lengths,
    completion_staleness,
    decoding_seconds,
    importance_weights,
    peak_seconds,
    step_flops,
    straggler_bubble,
    truncate_weights,
)
from tests.course.right_answers.nb10 import staleness_by_a_clock
from tests.support.agreement import assert_near, draw_batch, few_examples, seeds

lengths_of_batch = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@few_examples
@given(seed=seeds)
def test_importance_weights_equal_those_of_a_literal_loop(seed):
    logp, sampler, _, _, mask = draw_batch(4, 5, seed)
    tokens, rows = importance_weights(logp, sampler, mask), importance_weights(logp, sampler, mask, "sequence")
    for b in range(4):
        product = 1.0
        for t in range(5):
            ratio = math.exp(logp[b, t] - sampler[b, t]) if mask[b, t] else 1.0
            product *= ratio
            assert tokens[b, t].item() == pytest.approx(ratio)
            assert truncate_weights(tokens, 1.1)[b, t].item() == pytest.approx(min(ratio, 1.1))
            assert truncate_weights(tokens, 1.1, "mask")[b, t].item() == pytest.approx(ratio if ratio <= 1.1 else 0)
        assert rows[b, 0].item() == pytest.approx(product)
    assert torch.equal(truncate_weights(tokens, math.inf), tokens)


def test_importance_weights_ignore_padding_and_carry_no_gradient():
    logp, sampler, _, _, mask = draw_batch(4, 5, seed=0)
    nan_in_padding = torch.where(mask, sampler, math.nan)
    assert torch.equal(importance_weights(logp, nan_in_padding, mask), importance_weights(logp, sampler, mask))
    for level in ("token", "sequence"):
        assert not importance_weights(logp.requires_grad_(), sampler, mask, level).requires_grad


def test_a_weight_at_the_cap_is_kept():
    for mode in ("truncate", "mask"):
        assert truncate_weights(torch.tensor([[2.0, 2.5]]), 2.0, mode)[0, 0] == 2


def test_untruncated_importance_weights_are_unbiased():
    """For one token of three, the expectation over the sampler of w A grad log pi is the policy gradient."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    sampler, advantages = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64), torch.tensor([1.0, -2.0, 0.5]).double()
    logp, mask = logits.log_softmax(0)[:, None], torch.ones(3, 1, dtype=torch.bool)
    weights = importance_weights(logp, sampler.log()[:, None], mask)
    loss, _ = policy_loss(logp, 3 * (sampler * advantages)[:, None] * weights, mask, loss_type="dapo")
    (expected_estimate,) = torch.autograd.grad(-loss, logits, retain_graph=True)
    (policy_gradient,) = torch.autograd.grad((logp[:, 0].exp() * advantages).sum(), logits)
    assert_near(expected_estimate, policy_gradient)


@few_examples
@given(lengths=lengths_of_batch, slots=st.integers(1, 8))
def test_straggler_bubble_equals_that_of_a_simulated_clock(lengths, slots):
    """At each tick every free slot takes the next completion, and then every busy slot samples a token."""
    waiting, remaining, idle_ticks, ticks = list(lengths), [0] * slots, 0, 0
    while waiting or any(remaining):
        for slot in range(slots):
            if remaining[slot] == 0 and waiting:
                remaining[slot] = waiting.pop(0)
        idle_ticks, ticks = idle_ticks + remaining.count(0), ticks + 1
        remaining = [max(tokens - 1, 0) for tokens in remaining]
    assert straggler_bubble(torch.tensor(lengths), slots) == pytest.approx(idle_ticks / (slots * ticks))


@few_examples
@given(lengths=st.lists(lengths_of_batch.map(lambda n: n[:3] + [1] * (3 - len(n[:3]))), min_size=1, max_size=4))
def test_decoding_seconds_equal_those_of_a_literal_loop(lengths):
    parameters, cache_bytes, prompt, gpus = 1e9, 2e6, 7, 2
    seconds_of_samplers = decoding_seconds(torch.tensor(lengths), prompt, parameters, cache_bytes, gpus)
    for rows, seconds in zip(lengths, seconds_of_samplers.tolist(), strict=True):
        total = 0.0
        for t in range(1, max(rows) + 1):
            active_rows = sum(length >= t for length in rows)
            bytes_read = 2 * parameters + cache_bytes * active_rows * (prompt + t)
            total += max(2 * parameters * active_rows / H100.flops, bytes_read / H100.memory_bandwidth) / gpus
        assert seconds == pytest.approx(total, rel=1e-5)


def test_flops_of_a_step_by_hand():
    assert step_flops(2.0, 3.0, logprob_passes=2, checkpointing=False) == {"sample": 12, "logprobs": 24, "update": 36}
    assert step_flops(2.0, 3.0)["update"] == 48


def test_asynchronous_functions_refuse_wrong_arguments_by_name():
    logp, sampler, _, _, mask = draw_batch(4, 5, seed=0)
    for name, call in {
        "level": lambda: importance_weights(logp, sampler, mask, "word"),
        "mode": lambda: truncate_weights(logp.exp(), mode="clip"),
        "cap": lambda: truncate_weights(logp.exp(), 0.0),
        "slots": lambda: straggler_bubble(torch.tensor([1]), 0),
        "lengths": lambda: straggler_bubble(torch.tensor([0, 3]), 1),
        "group": lambda: completion_staleness(torch.tensor([1, 2, 3]), 1, 1, 2),
    }.items():
        with pytest.raises(ValueError, match=name):
            call()


@few_examples
@given(lengths=lengths_of_batch, slots=st.integers(1, 8), batch=st.integers(1, 5), group=st.integers(1, 4))
def test_completion_staleness_equals_that_of_a_simulated_clock(lengths, slots, batch, group):
    queue = torch.tensor(lengths * group)  # the number of completions is a multiple of the group size
    staleness = completion_staleness(queue, slots, batch, group)
    assert staleness.tolist() == staleness_by_a_clock(queue, slots, batch, group).tolist()


@pytest.mark.parametrize("spread", [0.5, 1.5])
def test_drawn_lengths_have_the_given_mean_and_limit(spread):
    torch.manual_seed(0)
    lengths = completion_lengths(4000, 300.0, 1000, spread)
    assert abs(lengths.double().mean() - 300) < 1
    assert lengths.min() >= 1
    assert lengths.max() <= 1000


@pytest.mark.parametrize("mean", [1.0, 1.2, 1.5, 2.0])
def test_drawn_lengths_may_have_a_small_mean(mean):
    torch.manual_seed(0)
    assert abs(completion_lengths(5000, mean, 100).double().mean() - mean) < 0.05  # the lengths are rounded


def test_a_step_at_the_peaks_ends_with_the_slowest_replica():
    gpu, lengths = Gpu(flops=100.0, memory_bandwidth=10.0), torch.tensor([1, 2, 3, 7])
    sampling, training = peak_seconds(Replica(5.0, 1.0, 2), 4, lengths, prompt_length=2, gpu=gpu)
    slowest = decoding_seconds(torch.tensor([[3, 7]]), 2, 5.0, 1.0, 2, gpu).item()
    assert sampling == pytest.approx(slowest)
    # For each token, 2 K operations for the log-probabilities and 8 K for the update.
    assert training == pytest.approx(10 * 5.0 * (13 + 4 * 2) / (4 * 100))
