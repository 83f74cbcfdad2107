"""The self-check accepts sound models, refuses others with a reason, and does not change a model.

A model without dropout has none left.
"""

import copy

import pytest
import torch

from grpo_lab.models import selfcheck
from grpo_lab.models.selfcheck import disable_dropout, ensure_checked, mean_logprob_difference
from grpo_lab.rollout.decoding.cache import InPlaceCache
from grpo_lab.rollout.forward import model_logprobs
from grpo_lab.rollout.model import context_length
from grpo_lab.trainer import train
from tests.support.architectures import make_architecture
from tests.support.sampling import scale_hidden
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy, same_weights, weights


@pytest.fixture(autouse=True)
def nothing_checked(monkeypatch):
    """Begin each test with no architecture checked."""
    monkeypatch.setattr(selfcheck, "_mean_differences", {})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["qwen2", "opt", "mamba"])
def test_self_check_does_not_change_the_model(name, training):
    model, _ = make_architecture(name)
    model.train(training)
    model.get_output_embeddings().eval()
    if training:
        model.gradient_checkpointing_enable()
    before, config = weights(model), model.config.to_json_string()
    numbers = [{k: v for k, v in vars(m).items() if isinstance(v, (bool, int, float))} for m in model.modules()]
    generation, random = model.generation_config, torch.get_rng_state()
    mean_logprob_difference(model)
    assert same_weights(weights(model), before) and all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert model.config.to_json_string() == config and model.generation_config is generation
    after = [{k: v for k, v in vars(m).items() if k in was} for m, was in zip(model.modules(), numbers, strict=True)]
    assert after == numbers and model.is_gradient_checkpointing is training


PACKED = model_logprobs.packed_hidden
BROKEN = {
    "sampler": (InPlaceCache, "load", lambda *arguments: None),
    "recomputation": (model_logprobs, "packed_hidden", lambda *inputs: scale_hidden(0.5, *PACKED(*inputs))),
}


@pytest.mark.parametrize("part", BROKEN)
def test_a_model_for_which_a_part_is_wrong_is_refused(part, monkeypatch):
    monkeypatch.setattr(*BROKEN[part])
    with pytest.raises(ValueError, match=r"cannot be trained here: .* differ by [\d.]+ nats a token"):
        train(*make_policy(), ROWS, letter_reward, make_config())


def test_a_run_checks_a_model_that_was_not_loaded_here_and_each_architecture_once(monkeypatch):
    seen, check = [], selfcheck.mean_logprob_difference
    monkeypatch.setattr(selfcheck, "mean_logprob_difference", lambda model: seen.append(model) or check(model))
    for seed in (0, 1):
        model, tokenizer = make_policy(seed=seed)
        train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=1, beta=0.1))
    assert len(seen) == 1
    ensure_checked(make_policy(intermediate_size=32)[0])
    assert len(seen) == 2, "other sizes make another architecture"


def test_context_length_is_read_under_every_name_and_for_longrope():
    named = {"gpt2": 64, "mpt": 64, "bloom": None, "xlnet": None, "llama (llama3 rope)": 64, "gemma3_text": 64}
    assert {name: context_length(make_architecture(name)[0].config) for name in named} == named
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 32}
    rope = {"rope_type": "longrope", "rope_theta": 1e4} | factors
    assert context_length(make_policy(rope_parameters=rope)[0].config) == 32


@pytest.mark.parametrize("name", ["qwen2", "gemma2", "granite", "gpt2"])
def test_self_check_passes_sound_models_in_half_precision(name):
    model, _ = make_architecture(name)
    ensure_checked(model.bfloat16())


@pytest.mark.parametrize("name", ["opt", "gpt2", "biogpt", "xglm", "mixtral", "seed_oss"])
def test_no_dropout_is_left_wherever_an_architecture_keeps_it(name):
    noisy = {"dropout": 0.3, "attention_dropout": 0.3, "layerdrop": 0.3, "resid_pdrop": 0.3, "router_jitter_noise": 0.2}
    model, _ = make_architecture(name, **noisy)
    ids = torch.randint(17, (2, 9), generator=torch.Generator().manual_seed(0))
    quiet = model(ids, use_cache=False).logits
    model.train()
    assert not torch.equal(model(ids, use_cache=False).logits, quiet)
    untouched = copy.deepcopy(model)
    disable_dropout(model)
    torch.testing.assert_close(model(ids, use_cache=False).logits, quiet)
    assert same_weights(weights(model), weights(untouched))
