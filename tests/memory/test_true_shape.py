"""Two real steps on the CPU and their plan, of all 494,032,768 parameters of Qwen2-0.5B's shape."""

import psutil
import pytest

from grpo_lab.base.display import GIB
from grpo_lab.bench.process import in_a_process
from tests.support import known_shape

pytestmark = pytest.mark.slow
# One prompt of 4 tokens with two completions of 4: what is left are the weights, and what belongs to each of them. Two
# steps: from the second on, AdamW's moments are there from the beginning.
SIZES = {"rows": 2, "num_generations": 2, "prompt": 4, "completion": 4, "steps": 2, "checkpointing": False}
PARAMETERS, NORMS = 290, 49


@pytest.mark.parametrize("mode", ["fp32", "bf16-naive"])
def test_two_steps(mode):
    """Sampled, log-probabilities, backward, AdamW; the peak of all tensors as planned."""
    spec = SIZES | {"mode": mode, "shape": "qwen2", "device": "cpu"}
    planned = known_shape.plan_for(spec)
    if (free := psutil.virtual_memory().available) < 1.25 * planned.peak:
        pytest.skip(f"needs {1.25 * planned.peak / GIB:.1f} GiB of free memory, and there are {free / GIB:.1f}")
    cell = in_a_process(known_shape.measure, spec | {"threads": 1})
    assert cell["steps"] == 2 and cell["finite"] and cell["nonfinite_steps"] == 0
    assert cell["parameters"] == cell["parameters_with_gradient"] == PARAMETERS
    # The weights of the norms are 1, where no step of 1e-5 arrives in bf16; nor does it at most of the other weights.
    naive = mode == "bf16-naive"
    assert cell["parameters_moved"] == PARAMETERS - (NORMS if naive else 0)
    assert cell["weights_moved"] < 0.5 if naive else cell["weights_moved"] > 0.99
    assert cell["logp_difference_max"] < (0.1 if naive else 1e-4)
    assert cell["planned"] == planned.peak
    assert planned.peak == pytest.approx(cell["peak"], rel=0.02)
