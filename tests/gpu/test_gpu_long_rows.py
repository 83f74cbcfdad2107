"""On a GPU, long rows without a mask are as near to float64 as masked rows, with the kernel that is chosen there."""

import pytest
import torch

from grpo_lab.rollout.forward import packing
from grpo_lab.rollout.forward.attention import VARLEN, kernel_of_long_rows
from grpo_lab.rollout.forward.model_logprobs import compute_logprobs
from grpo_lab.rollout.rollout import EncodedPrompts
from tests.support.known_shape import random_policy
from tests.support.logprob_inputs import unequal_rows

pytestmark = pytest.mark.gpu


def logp_and_gradient(dtype):
    """Return log-probabilities and the gradient of the first layer's query projection, converted to float64."""
    model = random_policy("small", dtype=torch.float64).to("cuda", dtype)
    inputs = [tensor.cuda() for tensor in unequal_rows()]
    logp, _ = compute_logprobs(model, *inputs, with_entropy=False)
    weights = torch.linspace(-1, 1, logp.numel(), device="cuda").view_as(logp)
    (logp * weights)[inputs[3]].sum().backward()
    return logp[inputs[3]].detach().double(), model.model.layers[0].self_attn.q_proj.weight.grad.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_long_rows_are_as_exact_as_masked_rows(dtype, monkeypatch):
    print(kernel_of_long_rows("cuda", dtype), "on torch", torch.__version__)
    exact, masked = logp_and_gradient(torch.float64), logp_and_gradient(dtype)
    monkeypatch.setattr(packing, "LONGEST_MASKED", 2)
    for exact_value, masked_value, long_value in zip(exact, masked, logp_and_gradient(dtype), strict=True):
        error, masked_error = ((x - exact_value).norm() / exact_value.norm() for x in (long_value, masked_value))
        assert error < max(1.5 * masked_error, 1e-5)


def test_half_precision_takes_one_kernel_for_all_rows():
    assert kernel_of_long_rows("cuda", torch.bfloat16) == VARLEN


def test_no_mask_of_a_long_row_is_in_memory():
    """Two rows of 8,192 tokens: the mask alone would take 7 x 2 x 8,192 x 8,192 numbers of 2 bytes, 1.75 GiB."""
    model = random_policy("qwen2", device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(1000, (2, 8192), device="cuda")
    with torch.no_grad():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        packing.packed_prompts(model, EncodedPrompts(ids, ids >= 0))
    assert torch.cuda.max_memory_allocated() - before < 2**30
