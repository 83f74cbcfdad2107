"""On a GPU, a run of Qwen2-0.5B's shape has the planned peak, and 8 GB are enough.

Each measurement runs in its own process.
"""

import pytest
import torch

from grpo_lab.base.display import GIB
from grpo_lab.bench.process import run_in_process
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory import RESERVE_BYTES
from tests.support import known_shape
from tests.support.known_shape import skip_unless_possible

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
measured: dict[str, dict] = {}


def spec_of(mode):
    return known_shape.LONG | {
        "mode": mode,
        "checkpointing": True,
        "shape": "qwen2",
        "device": "cuda",
    }


def measure(mode):
    """Measure a mode once, and skip the test if the GPU is too small."""
    skip_unless_possible(mode)
    if mode not in measured:
        total = torch.cuda.get_device_properties(0).total_memory
        planned = known_shape.plan_for(spec_of(mode)).peak
        if planned + RESERVE_BYTES > total:
            pytest.skip(f"by plan {mode} takes {planned / GIB:.1f} GiB, and this GPU has {total / GIB:.1f}")
        torch.cuda.empty_cache()
        measured[mode] = run_in_process(known_shape.measure, spec_of(mode))
    return measured[mode]


@pytest.mark.parametrize("mode", PRECISIONS)
def test_planned_gpu_peak_is_within_a_tenth_of_the_measured_one(mode):
    cell = measure(mode)
    assert cell["finite"] and cell["parameters"] == cell["parameters_with_gradient"]
    assert cell["planned"] == pytest.approx(cell["peak"], rel=0.1)


def test_bf16_training_of_qwen2_stays_below_five_and_a_half_gib():
    assert measure("bf16")["peak"] <= 5.5 * GIB


def test_qwen2_trains_in_bf16_within_eight_gb():
    skip_unless_possible("bf16")
    cell = run_in_process(known_shape.measure, spec_of("bf16") | {"cap": known_shape.CAP, "steps": 3})
    assert cell["steps"] == 3 and cell["finite"] and cell["reserved"] <= known_shape.CAP
