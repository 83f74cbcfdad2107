"""Stochastic rounding to bf16, and the share of a movement that is left after rounding."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.teaching.rounding import realised_share, stochastic_round

STEPS = 2**16
NOISE = torch.arange(STEPS, dtype=torch.float32) / STEPS  # every value of the 16 bits that bf16 lacks


def over_all_noise(value: float) -> torch.Tensor:
    return stochastic_round(torch.full((STEPS,), value, dtype=torch.float32), NOISE).double()


def neighbours(value: float) -> tuple[float, float]:
    """Return the nearest bf16 number towards zero, and the next one away from zero, computed from bits in Python."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    low = bits & 0xFFFF0000
    return tuple(struct.unpack("<f", struct.pack("<I", b))[0] for b in (low, low + 0x10000))


@settings(max_examples=60, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_stochastic_rounding_chooses_each_neighbour_with_its_probability(value):
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


@pytest.mark.parametrize("precision", ["fp32", "bf16-naive"])
def test_realised_share_equals_that_of_a_literal_loop(precision):
    rate, start = 3e-5, [0.5, -0.011, 0.003]
    first = [torch.tensor(w).bfloat16().item() for w in start]
    now = list(first)
    for t, share in enumerate(realised_share(torch.tensor(start), rate, 7, precision).tolist(), 1):
        for i in range(3):
            moved = torch.tensor(now[i]) - rate
            now[i] = (moved if precision == "fp32" else moved.bfloat16()).item()
        assert share == pytest.approx(sum(a - b for a, b in zip(first, now, strict=True)) / 3 / (t * rate), abs=1e-9)


def test_the_noise_is_independent_of_weights_drawn_from_the_same_seed():
    """Noise from an equally seeded generator would be correlated with the weights; half of step 1 would be lost."""
    for seed in (0, 1):
        weights = 0.02 * torch.randn(50_000, generator=torch.Generator().manual_seed(seed))
        assert realised_share(weights, 1e-5, 1, "bf16", seed).item() == pytest.approx(1, abs=0.1)
    with pytest.raises(ValueError, match="precision is 'fp16'; expected one of 'fp32', 'bf16-naive', 'bf16'"):
        realised_share(torch.ones(1), 1e-6, 1, "fp16")
