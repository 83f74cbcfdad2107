"""On a GPU, the captured step gives the same numbers as an uncaptured one, and its memory is freed."""

import pytest
import torch

from grpo_lab.rollout.decoding import static as static_module
from grpo_lab.rollout.decoding.decoder import DecoderSpec
from grpo_lab.rollout.decoding.sampling_params import SamplingParams
from tests.support.known_shape import make_tokenizer, random_policy
from tests.support.sampling import SETTINGS, assert_same_rollouts, sample
from tests.support.worlds import make_world

pytestmark = pytest.mark.gpu


def static(world, *arguments, **settings):
    return sample(*world, *arguments, **settings)


def on_card(**settings):
    model, tokenizer = make_world(**settings)
    return model.cuda(), tokenizer


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_graph_draws_the_very_numbers_of_the_plain_step(settings, monkeypatch):
    """With every setting: whatever a warper calls has to be allowed in a capture."""
    world = on_card(pad_is_end=True)
    captured = [static(world, length=length, generations=20, **settings) for length in (1, 6, 17, 40)]
    monkeypatch.setattr(static_module, "_capture", lambda step, device: step)
    for rollout, length in zip(captured, (1, 6, 17, 40), strict=True):
        assert_same_rollouts(rollout, static(world, length=length, generations=20, **settings))


def test_capturing_draws_no_random_numbers():
    world = on_card()
    assert_same_rollouts(static(world), static(world), tolerance=1e-12)
    torch.manual_seed(7)
    before = torch.cuda.get_rng_state()
    static_module.GraphDecoder(world[0], DecoderSpec(4, 1, 64, SamplingParams((0,), 0)))
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_tokens_come_as_often_as_the_model_says():
    model, tokenizer = world = on_card()
    drawn = static(world, ["ab+"], length=1, generations=8000).completion_ids[:, 0]
    ids = torch.tensor([tokenizer("ab+")["input_ids"]], device="cuda")
    with torch.no_grad():
        expected = model(ids).logits[0, -1].double().softmax(-1) * len(drawn)
    counts, cells = drawn.bincount(minlength=len(expected)).double(), len(expected)
    assert ((counts - expected) ** 2 / expected).sum() < cells + 8 * (2 * cells) ** 0.5


def test_the_memory_comes_back():
    model = random_policy("small", "cuda")
    world = model, make_tokenizer(model.config.vocab_size)
    reserved = []
    for _ in range(4):
        static(world, ["t1 t2"], length=500, generations=64)  # 64 MiB of keys and values
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved[1:]) <= reserved[0] + 8 * 2**20  # after the first, libraries have set themselves up
