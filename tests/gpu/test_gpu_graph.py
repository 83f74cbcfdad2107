"""On a GPU, the captured step gives the same numbers as an uncaptured one, and its memory is freed."""

import pytest
import torch

from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.decoding import graph_decoder
from grpo_lab.rollout.decoding.decoder import DecoderSpec
from tests.support.known_shape import make_tokenizer, random_policy
from tests.support.sampling import SETTINGS, assert_same_rollouts, sample
from tests.support.small_policy import make_policy

pytestmark = pytest.mark.gpu


def policy_on_gpu(**settings):
    model, tokenizer = make_policy(**settings)
    return model.cuda(), tokenizer


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_graph_draws_the_very_numbers_of_the_plain_step(settings, monkeypatch):
    """With every setting: whatever a warper calls has to be allowed in a capture."""
    policy = policy_on_gpu(pad_is_end=True)
    captured = [sample(*policy, length=length, generations=20, **settings) for length in (1, 6, 17, 40)]
    monkeypatch.setattr(graph_decoder, "_capture", lambda step, device: step)
    for rollout, length in zip(captured, (1, 6, 17, 40), strict=True):
        assert_same_rollouts(rollout, sample(*policy, length=length, generations=20, **settings))


def test_capturing_draws_no_random_numbers():
    policy = policy_on_gpu()
    assert_same_rollouts(sample(*policy), sample(*policy), tolerance=1e-12)
    torch.manual_seed(7)
    before = torch.cuda.get_rng_state()
    graph_decoder.GraphDecoder(policy[0], DecoderSpec(4, 64, SamplingParams(1, 8), (0,), 0))
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_frequencies_of_captured_draws_are_the_model_s_probabilities():
    model, tokenizer = policy = policy_on_gpu()
    drawn = sample(*policy, ["ab+"], length=1, generations=8000).completion_ids[:, 0]
    ids = torch.tensor([tokenizer("ab+")["input_ids"]], device="cuda")
    with torch.no_grad():
        expected = model(ids).logits[0, -1].double().softmax(-1) * len(drawn)
    counts, cells = drawn.bincount(minlength=len(expected)).double(), len(expected)
    assert ((counts - expected) ** 2 / expected).sum() < cells + 8 * (2 * cells) ** 0.5


def test_repeated_rollouts_reserve_no_further_gpu_memory():
    model = random_policy("small", "cuda")
    policy = model, make_tokenizer(model.config.vocab_size)
    reserved = []
    for _ in range(4):
        sample(*policy, ["t1 t2"], length=500, generations=64)  # 64 MiB of keys and values
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved[1:]) <= reserved[0] + 8 * 2**20  # after the first, libraries have set themselves up
