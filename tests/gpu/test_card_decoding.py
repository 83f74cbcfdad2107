"""On a card: what the sampler records is what is computed again."""

import pytest
import torch

from grpo_lab.config.precision import PRECISIONS, autocast
from grpo_lab.models.shapes import random_policy
from grpo_lab.rollout import sample_completions
from tests.gpu.test_card_training import needs
from tests.support.known_shape import make_rows, make_tokenizer
from tests.support.sampling import logprobs_of

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
CACHES = (None, "dynamic")


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("mode", "worst", "mean"), [("fp32", 1e-4, 1e-5), ("bf16-naive", 0.3, 0.03), ("fp32-master", 0.3, 0.03)]
)
def test_sampled_and_recomputed_agree(mode, worst, mean, cache):
    """Prompts of two lengths, so with padding; half precision rounds the two ways differently, and not far."""
    needs(mode)
    precision = PRECISIONS[mode]
    model = random_policy("small", CUDA, precision.weights)
    tokenizer = make_tokenizer(model.config.vocab_size)
    prompts = [row["prompt"] for length in (9, 30) for row in make_rows(2, length, model.config.vocab_size)]
    with autocast(CUDA, precision), torch.no_grad():
        rollout = sample_completions(model, tokenizer, prompts, 4, 24, cache_implementation=cache)
        logp, entropy = logprobs_of(model, rollout)
        difference = (logp - rollout.logp).abs()[rollout.mask]
        assert difference.max() < worst and difference.mean() < mean
        assert (entropy - rollout.entropy).abs()[rollout.mask].mean() < mean
    assert rollout.mask.all() and rollout.truncated.all()
