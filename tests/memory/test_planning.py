"""The plan of a run's memory: its parts equal real tensors, and it never shrinks when a setting grows."""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory import (
    GIB,
    GPU_PRECISIONS,
    MemoryPlan,
    all_candidates,
    choose_candidate,
    formulas,
    phases,
    plan_memory,
    shape_of,
)
from grpo_lab.memory.phases import resident_bytes
from grpo_lab.models import shapes
from grpo_lab.models.shapes import shape_config
from grpo_lab.rollout.decoding.cache import InPlaceCache
from grpo_lab.rollout.decoding.graph_decoder import fixed_columns
from grpo_lab.trainer import PolicyOptimizer
from tests.support.known_shape import random_policy
from tests.support.planned_steps import UNTIED, config_of_sizes, plan_step


@pytest.fixture(autouse=True)
def untied(monkeypatch):
    monkeypatch.setitem(shapes.SHAPES, "untied", UNTIED)


@pytest.mark.parametrize("shape", ["small", "untied"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_gradients_and_moments_are_those_of_real_tensors(precision, shape):
    model = random_policy(shape, dtype=PRECISIONS[precision].weights)
    parameters = list(model.parameters())
    optimizer = PolicyOptimizer(model, config_of_sizes(precision=precision))
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    memory_plan = plan_step(shape, precision, config_of_sizes())
    part = memory_plan.phases["optimizer"]
    assert part["weights"] == sum(p.nbytes for p in parameters)
    assert part["gradients"] == sum(p.grad.nbytes for p in parameters)
    optimizer.step(1e-3, loss=0.0)
    moments = [tensor for name, tensor in optimizer.tensors().items() if not name.endswith("step")]
    assert part["Adam's moments"] == sum(moment.nbytes for moment in moments)


def test_planned_bytes_of_the_cache_are_those_of_real_caches():
    for shape in ("small", "untied"):
        sizes = shape_of(shape_config(shape))
        for dtype in (torch.float32, torch.bfloat16):
            model, cache = random_policy(shape, dtype=dtype), DynamicCache()
            model(torch.randint(2000, (3, 17)), past_key_values=cache, use_cache=True)
            real = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
            assert formulas.cache_bytes(sizes, 3 * 17, dtype.itemsize) == real
            columns = fixed_columns(17, 60)
            fixed = InPlaceCache(model, 3, columns, torch.zeros(1, dtype=torch.long))
            real = sum(tensor.nbytes for tensor in (*fixed.keys, *fixed.values))
            assert formulas.cache_bytes(sizes, 3 * columns, dtype.itemsize) == real


@pytest.mark.parametrize("settings", [{"beta": 0.1}, {"log_kl": True}], ids=str)
def test_plan_counts_the_reference_by_its_device(settings):
    config = config_of_sizes(**settings)
    for device, expected in [(None, 1), ("cpu", 0), ("cuda:1", 1)]:
        with_reference = replace(config, ref_model_device=device)
        memory_plan = plan_memory(shape_config("small"), with_reference, prompt_length=16, precision="bf16")
        assert all(part["reference"] == expected * part["weights"] for part in memory_plan.phases.values())
        computed = "head" in memory_plan.phases["logprobs"] or "activations" in memory_plan.phases["logprobs"]
        assert computed == (bool(expected) or config.log_kl), "to measure the KL, the policy reads here too"
    assert plan_step("small", "bf16", config).phases["rollout"]["reference"] > 0, "here the CPU is the device"
    alone = plan_step("small", "bf16", config_of_sizes())
    assert not any(part["reference"] for part in alone.phases.values())
    assert alone.totals["logprobs"] == sum(resident_bytes(alone.sizes).values()), "nothing is computed apart"


@cache
def base() -> MemoryPlan:
    """The plan for Qwen2-0.5B, cached because finding its sizes takes time."""
    return plan_memory(shape_config("qwen2"), config_of_sizes(), prompt_length=256, precision="fp32")


def qwen(precision="bf16", **changes) -> MemoryPlan:
    return base().with_changes(config=config_of_sizes(T=512, G=8, **changes), precision=PRECISIONS[precision])


def test_full_parameter_training_of_qwen2_fits_into_five_and_a_half_gib():
    for settings_ in ({"gradient_checkpointing": True}, {"gradient_checkpointing": True, "b": 2}, {"b": 1}):
        memory_plan = qwen(**settings_)
        assert memory_plan.peak <= 5.5 * GIB and memory_plan.fits(8 * GIB)
    assert qwen("fp32").peak > 16 * GIB


def test_each_candidate_has_its_own_plan_and_the_first_that_fits_is_chosen():
    memory_plan = qwen("fp32-master", beta=0.04)
    candidates = list(all_candidates(memory_plan, GPU_PRECISIONS[True]))
    assert [plan.sizes.precision.name for plan in candidates[:4]] == ["fp32-master"] * 2 + ["bf16"] * 2
    assert [plan.sizes.config.gradient_checkpointing for plan in candidates[:4]] == [False, True] * 2
    assert [plan.sizes.microbatch_size for plan in candidates] == [8] * 4 + [4, 2, 1]
    for plan in candidates:
        config = plan.sizes.config
        assert config.precision == plan.sizes.precision.name and config.update_batch_size == 8
        assert base().with_changes(config=config, precision=PRECISIONS[config.precision]).peak == plan.peak
    for budget in (40, 20, 12, 6, 4):
        chosen, lines = choose_candidate(memory_plan, budget * GIB, GPU_PRECISIONS[True])
        candidates = [plan.with_rollout_within(budget * GIB) for plan in candidates]
        fitting = [plan for plan in candidates if plan.fits(budget * GIB)]
        assert chosen == (fitting or candidates)[0 if fitting else -1]
        assert lines[-1].startswith("chosen: " if fitting else "none of them fits")


def test_no_candidate_changes_the_micro_batch_of_a_loss_that_depends_on_it():
    sizes = [plan.sizes.microbatch_size for plan in all_candidates(qwen(loss_type="bnpo"), GPU_PRECISIONS[True])]
    assert sizes == [8] * 4


def test_a_rollout_that_does_not_fit_is_planned_in_parts():
    config = config_of_sizes(T=256, G=16, B=4096, b=4096, gradient_checkpointing=True)
    config = replace(config, per_device_train_batch_size=16, gradient_accumulation_steps=256)
    memory_plan = plan_step("qwen2", "bf16", config, 256, "cuda")
    chosen, lines = choose_candidate(memory_plan, 24 * GIB, ("bf16",))
    num_parts = chosen.sizes.rollout_parts
    assert memory_plan.totals["rollout"] > 40 * GIB and chosen.fits(24 * GIB)
    assert 256 % num_parts == 0 and num_parts > 1
    assert not chosen.with_changes(rollout_parts=num_parts // 2).fits(24 * GIB), "no finer than it has to be"
    assert f"rollout in {num_parts} parts, the first that fits" in lines[-1]
    with_environment = memory_plan.with_changes(has_environment=True)
    chosen, lines = choose_candidate(with_environment, 24 * GIB, ("bf16",))
    assert chosen.sizes.rollout_parts == 1 and lines[-1].startswith("none of them fits"), "episodes are sampled at once"
    assert choose_candidate(with_environment, 200 * GIB, ("bf16",))[1][-1].startswith("chosen: bf16")


def peak_of(precision, checkpointing, prompts, rows, L, T, beta=0.0):
    config = config_of_sizes(T=T, G=4, B=4 * prompts, b=4 * prompts, gradient_checkpointing=checkpointing, beta=beta)
    config = replace(config, per_device_train_batch_size=rows, gradient_accumulation_steps=4 * prompts // rows)
    return base().with_changes(config=config, precision=PRECISIONS[precision], prompt_length=L).peak


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(PRECISIONS)),
    st.booleans(),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 600),
    st.integers(221, 600),  # completions of at least 221 tokens, whose logits are made in chunks
)
@pytest.mark.parametrize(
    "longest", [0, 10**6]
)  # either no row has a mask or every row; between the two, a longer row may take less
def test_planned_peak_never_falls_when_a_size_grows(longest, precision, checkpointing, prompts, rows, L, T):
    with patch.object(phases, "LONGEST_MASKED", longest):
        less = peak_of(precision, checkpointing, prompts, rows, L, T)
        assert peak_of(precision, checkpointing, prompts, rows, L + 64, T) >= less
        assert peak_of(precision, checkpointing, prompts, rows, L, T + 64) >= less
        assert peak_of(precision, checkpointing, 2 * prompts, rows, L, T) >= less
        assert peak_of(precision, checkpointing, prompts, rows, L, T, beta=0.1) >= less
        if 2 * rows < 4 * prompts:  # with the whole update in one micro-batch there are no earlier gradients
            assert peak_of(precision, checkpointing, prompts, 2 * rows, L, T) >= less
        assert peak_of(precision, True, prompts, rows, L, T) <= peak_of(precision, False, prompts, rows, L, T)
