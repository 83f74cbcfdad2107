"""The precisions of full-parameter training: the choice of one, and the rounding of bf16 numbers."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.base.origin import set_origin
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, precision_of, realised_share, slow_here, stochastic_round
from grpo_lab.evaluate import evaluate
from grpo_lab.rollout import sample_completions
from grpo_lab.rollout.environments import environment
from tests.support.small_policy import make_policy

STEPS = 2**16
NOISE = torch.arange(STEPS, dtype=torch.float32) / STEPS  # every value of the 16 bits that bf16 lacks


CHOICES = [
    (torch.float32, {}, "fp32"),
    (torch.bfloat16, {}, "bf16"),
    (torch.float32, {"bf16": True}, "fp32-master"),
    (torch.float32, {"fp16": True}, "fp16"),
    (torch.bfloat16, {"bf16": True}, "bf16"),
    *[(precision.weights, {"precision": name}, name) for name, precision in PRECISIONS.items()],
]


def test_the_precision_follows_the_configuration_then_the_weights():
    for dtype, config, name in CHOICES:
        assert precision_of(make_policy()[0].to(dtype), GRPOConfig(**config)) is PRECISIONS[name]
        expected_request = (
            {"fp32-master": "fp32-master", "fp16": "fp16"}.get(name) if "precision" not in config else name
        )
        if dtype == torch.float32:
            assert GRPOConfig(**config).requested_precision == expected_request
    mode = precision_of(make_policy()[0].double(), GRPOConfig())
    assert mode.name == "fp32" and mode.weights == torch.float64 and mode.autocast is None


def test_without_a_config_the_loaded_precision_stays():
    model, _ = make_policy()
    for dtype, precision, arithmetic in (
        (torch.float32, "fp16", torch.float16),
        (torch.float32, None, None),
        (torch.bfloat16, "fp32-master", None),
        (torch.bfloat16, None, None),
        (torch.float16, None, None),
        (torch.float64, "fp32", None),
    ):
        set_origin(model.to(dtype), precision=precision)
        mode = precision_of(model)
        assert (mode.weights, mode.autocast) == (dtype, arithmetic)


MISFITS = [
    (torch.bfloat16, {"precision": "fp32"}, "precision is 'fp32', which trains torch.float32 weights, .* torch.bf"),
    (torch.float32, {"precision": "bf16"}, r"the model's are torch.float32; load it with .*precision='bf16'"),
    (torch.float64, {"precision": "fp32-master"}, "the model's are torch.float64"),
    (torch.bfloat16, {"fp16": True}, "fp16 is True, which trains torch.float32 weights"),
    (torch.float16, {}, "model has weights of torch.float16; .*precision='fp16'"),
]


def test_weights_that_do_not_fit_the_mode_are_refused_with_a_way_out():
    for dtype, config, message in MISFITS:
        with pytest.raises(ValueError, match=message):
            precision_of(make_policy()[0].to(dtype), GRPOConfig(**config))
    model, _ = make_policy()
    model.lm_head.bfloat16()
    with pytest.raises(ValueError, match="model has weights of torch.bfloat16, torch.float32; expected"):
        precision_of(model, GRPOConfig())


@pytest.mark.parametrize("name", [None, *PRECISIONS])
def test_evaluation_computes_as_the_model_was_loaded(name, monkeypatch):
    model, tokenizer = make_policy()
    set_origin(model, precision=name)
    if name:
        model.to(PRECISIONS[name].weights)
    seen = []

    def spy(*arguments, **keywords):
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        return sample_completions(*arguments, **keywords)

    monkeypatch.setattr(environment, "sample_completions", spy)
    evaluate(model, tokenizer, [{"prompt": "abc", "answer": "1"}], max_completion_length=2)
    assert seen == [PRECISIONS[name].autocast if name else None]


def test_a_cpu_without_bf16_is_told_so_and_others_are_not(monkeypatch):
    warnings = []
    for capabilities in ({"avx2": True, "avx512_bf16": False}, {"avx2": True, "avx512_bf16": True}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda available=capabilities: available)
        warnings += [slow_here(torch.device("cpu"), PRECISIONS[mode]) for mode in ("fp32-master", "bf16-naive", "fp32")]
    assert [text is not None for text in warnings] == [True, True, False, False, False, False]
    assert warnings[0] == "this CPU has no bf16, so fp32-master is several times slower than fp32"


def over_all_noise(value: float) -> torch.Tensor:
    return stochastic_round(torch.full((STEPS,), value, dtype=torch.float32), NOISE).double()


def neighbours(value: float) -> tuple[float, float]:
    """Return the nearest bf16 number towards zero, and the next one away from zero, computed from bits in Python."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    low = bits & 0xFFFF0000
    return tuple(struct.unpack("<f", struct.pack("<I", b))[0] for b in (low, low + 0x10000))


@settings(max_examples=60, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_any_number_goes_to_a_neighbour_as_often_as_is_right(value):
    low, high = neighbours(value)
    rounded = over_all_noise(value)
    if math.isinf(high):
        assert set(rounded.tolist()) == {low}, "there is no neighbour to go to"
    else:
        assert (rounded == high).sum().item() * (high - low) == (value - low) * STEPS


def test_infinities_and_nan_stay_and_only_float32_can_be_rounded():
    nan = torch.tensor([0x7F800001, 0x7FFFFFFF, -0x7FFFFF], dtype=torch.int32).view(torch.float32)
    for noise in (0.0, 0.5, 0.9999):
        assert stochastic_round(nan, torch.full((3,), noise)).isnan().all()
        x = torch.tensor([math.inf, -math.inf])
        assert torch.equal(stochastic_round(x, torch.full((2,), noise)).float(), x)
    with pytest.raises(ValueError, match="x is torch.float64; expected torch.float32"):
        stochastic_round(torch.zeros(2, dtype=torch.float64), torch.zeros(2))


@pytest.mark.parametrize("mode", ["fp32", "bf16-naive"])
def test_the_share_is_that_of_a_literal_loop(mode):
    rate, start = 3e-5, [0.5, -0.011, 0.003]
    first = [torch.tensor(w).bfloat16().item() for w in start]
    now = list(first)
    for t, share in enumerate(realised_share(torch.tensor(start), rate, 7, mode).tolist(), 1):
        for i in range(3):
            moved = torch.tensor(now[i]) - rate
            now[i] = (moved if mode == "fp32" else moved.bfloat16()).item()
        assert share == pytest.approx(sum(a - b for a, b in zip(first, now, strict=True)) / 3 / (t * rate), abs=1e-9)


def test_the_noise_is_independent_of_weights_drawn_from_the_same_seed():
    """Noise from an equally seeded generator would be correlated with the weights; half of step 1 would be lost."""
    for seed in (0, 1):
        weights = 0.02 * torch.randn(50_000, generator=torch.Generator().manual_seed(seed))
        assert realised_share(weights, 1e-5, 1, "bf16", seed).item() == pytest.approx(1, abs=0.1)
    with pytest.raises(ValueError, match="mode is 'fp16'; expected one of 'fp32', 'bf16-naive', 'bf16'"):
        realised_share(torch.ones(1), 1e-6, 1, "fp16")
