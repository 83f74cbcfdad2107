"""The plan of two real steps on the CPU with a model of Qwen2-0.5B's shape, 494,032,768 parameters."""

import psutil
import pytest

from grpo_lab.base.display import GIB
from grpo_lab.bench.process import run_in_process
from tests.support import known_shape

pytestmark = pytest.mark.slow
# With one prompt of 4 tokens and two completions of 4 tokens, nearly all memory is for weights, gradients and moments.
# There are two steps because AdamW's moments exist from the beginning only in the second.
SIZES = {"rows": 2, "num_generations": 2, "prompt": 4, "completion": 4, "steps": 2, "checkpointing": False}
PARAMETERS, NORMS = 290, 49


@pytest.mark.parametrize("mode", ["fp32", "bf16-naive"])
def test_planned_peaks_of_two_steps_in_the_true_shape(mode):
    """The peak of all tensors over sampling, log-probabilities, backward pass and AdamW is as planned."""
    spec = SIZES | {"mode": mode, "shape": "qwen2", "device": "cpu"}
    planned = known_shape.plan_for(spec)
    if (free := psutil.virtual_memory().available) < 1.25 * planned.peak:
        pytest.skip(f"needs {1.25 * planned.peak / GIB:.1f} GiB of free memory, and there are {free / GIB:.1f}")
    cell = run_in_process(known_shape.measure, spec, threads=1)
    assert cell["steps"] == 2 and cell["finite"] and cell["nonfinite_steps"] == 0
    assert cell["parameters"] == cell["parameters_with_gradient"] == PARAMETERS
    # In bf16, an update of 1e-5 is rounded away at the weights of the norms, which are 1, and at most other weights.
    naive = mode == "bf16-naive"
    assert cell["parameters_moved"] == PARAMETERS - (NORMS if naive else 0)
    assert cell["weights_moved"] < 0.5 if naive else cell["weights_moved"] > 0.99
    assert cell["logp_difference_max"] < (0.1 if naive else 1e-4)
    assert cell["planned"] == planned.peak
    assert planned.peak == pytest.approx(cell["peak"], rel=0.02)
