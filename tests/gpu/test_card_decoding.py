"""On a card: what the sampler records is what the scorer finds, and a captured step does what the plain one does."""

import pytest
import torch

from grpo_lab.models.shapes import random_policy
from grpo_lab.precision import PRECISIONS, autocast, has_native_bf16
from grpo_lab.rollout import sample_completions, score_logprobs
from grpo_lab.rollout import static as decoding
from tests.support.card import make_rows, make_tokenizer
from tests.support.sampling import sample
from tests.support.worlds import make_world

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
CACHES = ("static", "dynamic")


def mode_or_skip(name):
    if "bf16" in name and not has_native_bf16(CUDA):
        pytest.skip("this card has no bf16")
    return PRECISIONS[name]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("mode", "worst", "mean"), [("fp32", 1e-4, 1e-5), ("bf16-naive", 0.3, 0.03), ("fp32-master", 0.3, 0.03)]
)
def test_sampler_and_scorer_agree(mode, worst, mean, cache):
    """Prompts of two lengths, so with padding; half precision rounds the two ways differently, and not far."""
    precision = mode_or_skip(mode)
    model = random_policy("small", CUDA, precision.weights)
    tokenizer = make_tokenizer(model.config.vocab_size)
    prompts = [row["prompt"] for length in (9, 30) for row in make_rows(2, length, model.config.vocab_size)]
    with autocast(CUDA, precision), torch.no_grad():
        rollout = sample_completions(model, tokenizer, prompts, 4, 24, cache_implementation=cache)
        for share in (True, False):
            logp, entropy = score_logprobs(
                model,
                rollout.prompt_ids,
                rollout.prompt_mask,
                rollout.completion_ids,
                rollout.mask,
                torch.arange(16, device=CUDA) // 4,
                share_prompts=share,
            )
            difference = (logp - rollout.logp).abs()[rollout.mask]
            assert difference.max() < worst and difference.mean() < mean
            assert (entropy - rollout.entropy).abs()[rollout.mask].mean() < mean
    assert rollout.mask.all() and rollout.truncated.all()


def greedy(monkeypatch, cache, capture=True):
    """Clocks that all ring at the same rate: the likeliest token wins, with or without random numbers."""
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda tensor, *rate, **more: tensor.fill_(1.0))
    monkeypatch.setattr(decoding, "_can_capture", lambda device: capture)
    model, tokenizer = make_world()
    return sample(model.to(CUDA), tokenizer, cache_implementation=cache)


def test_a_captured_step_does_what_the_plain_one_does(monkeypatch):
    captured, plain = greedy(monkeypatch, "static"), greedy(monkeypatch, "static", capture=False)
    assert torch.equal(captured.completion_ids, plain.completion_ids) and captured.texts == plain.texts
    torch.testing.assert_close(captured.logp, plain.logp, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(captured.entropy, plain.entropy, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache", CACHES)
def test_the_seed_decides(cache):
    model, tokenizer = make_world()
    model.to(CUDA)
    drawn = []
    for seed in (1, 1, 2):
        drawn.append(sample(model, tokenizer, seed=seed, cache_implementation=cache).texts)
    assert drawn[0] == drawn[1] != drawn[2]
