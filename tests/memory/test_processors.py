"""In half precision the plan for the CPU is an upper bound, whichever instructions the processor's libraries use.

torch and oneDNN take the level of their instructions from the environment once, so each level has a process.
"""

import os
import subprocess
import sys
from unittest import mock

import pytest

from grpo_lab.models import shapes
from grpo_lab.rollout import score
from tests.support.allocations import peak_on_cpu
from tests.support.steps import UNTIED, at_most, make_config, planned, rollout_of, update_and_scoring

HALF = ("fp32-master", "bf16", "fp16")
LEVELS = [
    {},
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_it_is_an_upper_bound(level):
    command = [sys.executable, "-c", "from tests.memory import test_processors; test_processors.compare()"]
    outcome = subprocess.run(command, env=os.environ | level, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr[-2000:]


def compare():
    """All that torch allocates, the workspaces of its kernels included, is at most what is planned."""
    for mode in HALF:
        for checkpointing in (False, True):
            config = make_config(T=24, gradient_checkpointing=checkpointing, num_iterations=2)
            with mock.patch.object(score, "LOGITS_AT_ONCE", 2**18), mock.patch.dict(shapes.SHAPES, untied=UNTIED):
                made = planned("untied", mode, config, L=8)
                update, scoring = update_and_scoring("untied", mode, config, L=8)
                for station, call in (("update", update), ("scoring", scoring)):
                    assert (peak := peak_on_cpu(call)) <= at_most(made, station), (mode, checkpointing, station, peak)
        rollout, config, L = rollout_of(mode, "dynamic", T=12, B=32)
        assert (peak := peak_on_cpu(rollout)) <= at_most(planned("small", mode, config, L), "rollout"), (mode, peak)
