"""Gradient checkpointing in training mode drops the cache: what decodes repairs that state, the rest refuses it."""

import contextlib
import random
from itertools import pairwise

import pytest
import torch
from transformers import DynamicCache

from grpo_lab.chat import reply
from grpo_lab.models import load_policy, smollm2
from grpo_lab.rollout import encode_prompts, evaluating
from grpo_lab.rollout.prompts import drops_cache, run_prompts
from tests.support.architectures import make_architecture
from tests.support.sampling import sample, score

LENGTH = 12
# Which modules are in training mode, and how many layers from one checkpointed layer to the next.
DROPPING = {
    "as S0 has it": (lambda model: model.train(), 1),
    "every second layer is checkpointed": (lambda model: model.train(), 2),
    "the layers alone are in training mode": (lambda model: model.base_model.layers.train(), 1),
    "one layer alone is": (lambda model: model.base_model.layers[1].train(), 1),
}


@pytest.fixture(params=DROPPING)
def dropping(request):
    """(model, tokenizer), evaluated as it is made, and what puts the model into a state that drops the cache."""
    model, tokenizer = make_architecture("llama", num_hidden_layers=3)
    set_modes, every = DROPPING[request.param]

    def drop():
        model.gradient_checkpointing_enable(every_n_layers=every)
        set_modes(model.eval())
        assert drops_cache(model)

    return model, tokenizer, drop


def modes(model) -> list[tuple[bool, bool | None]]:
    return [(module.training, getattr(module, "gradient_checkpointing", None)) for module in model.modules()]


def same(one, other) -> bool:
    names = ("completion_ids", "mask", "logp", "entropy", "truncated")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names) and one.texts == other.texts


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_samples_are_those_of_evaluation_mode_bit_for_bit(cache, dropping):
    model, tokenizer, drop = dropping
    expected = sample(model, tokenizer, length=LENGTH, cache_implementation=cache)
    assert len(set(expected.texts)) > 3
    drop()
    before = modes(model)
    assert same(sample(model, tokenizer, length=LENGTH, cache_implementation=cache), expected)
    assert modes(model) == before and drops_cache(model), "the state was repaired for a while only"


def test_samples_of_a_model_that_computes_each_prompt_for_itself(dropping):
    model, tokenizer, drop = dropping
    model.rollout_forbids = {"shared_prompts": "asked for"}  # then `generate` makes the cache
    expected = sample(model, tokenizer, length=LENGTH)
    drop()
    assert same(sample(model, tokenizer, length=LENGTH), expected)


# --- the control: what transformers' own `generate` does in that state ------------------------------------------------


def greedy(model, ids, length=LENGTH, **settings) -> list[int]:
    """Plain `generate`; the tokens after the prompt."""
    mask = torch.ones_like(ids)
    sequence = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=length, **settings)[0]
    return sequence[ids.shape[1] :].tolist()


@torch.no_grad()
def by_hand(model, ids, sees_all: bool, length=LENGTH) -> list[int]:
    """The definition: the most likely token after all that stands there, or after the last new token alone."""
    drawn = []
    while len(drawn) < length:
        seen = torch.cat([ids, torch.tensor([drawn], dtype=torch.long)], dim=1)
        seen = seen if sees_all or not drawn else seen[:, -1:]
        drawn.append(int(model(seen, use_cache=False).logits[0, -1].argmax()))
    return drawn


@pytest.fixture
def endless():
    """A model whose replies are LENGTH tokens long, and a prompt for it."""
    model, tokenizer = make_architecture("llama", num_hidden_layers=3)
    model.generation_config.eos_token_id = None
    return model, encode_prompts(tokenizer, ["ab+3"])[0]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_only_both_together_make_generate_forget_all_but_the_last_token(checkpointing, training, endless):
    model, ids = endless
    whole, last = (by_hand(model, ids, sees_all) for sees_all in (True, False))
    assert whole != last and whole[0] == last[0], "the first token is drawn after the whole prompt, either way"
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.train(training)
    assert drops_cache(model) == (checkpointing and training)
    for settings in ({}, {"use_cache": True}):
        assert greedy(model, ids, **settings) == (last if checkpointing and training else whole)
    assert greedy(model, ids, use_cache=False) == whole, "without a cache every token is computed after all others"
    with evaluating(model):
        assert greedy(model, ids) == whole


def test_one_token_that_sees_itself_alone_has_one_follower_wherever_it_stands(endless):
    """So the broken reply is a walk in a map of tokens to tokens: after as many steps as tokens it goes in a circle."""
    model, ids = endless
    model.gradient_checkpointing_enable()
    model.train()
    vocabulary = model.config.vocab_size
    drawn = greedy(model, ids, length=2 * vocabulary)
    follower = dict(pairwise(drawn))
    assert all(follower[token] == then for token, then in pairwise(drawn))
    first = drawn[vocabulary]
    circle = drawn[vocabulary : drawn.index(first, vocabulary + 1)]
    assert drawn[vocabulary:] == (circle * vocabulary)[:vocabulary]


# --- the modes of the modules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_every_module_returns_to_its_own_mode(seed, fails):
    model, _ = make_architecture("llama")
    rng = random.Random(seed)
    for module in model.modules():
        module.training = rng.random() < 0.5
    before = modes(model)
    with contextlib.suppress(KeyError), evaluating(model):
        assert not any(module.training for module in model.modules())
        if fails:
            raise KeyError
    assert modes(model) == before


def test_a_layer_that_was_frozen_in_evaluation_mode_stays_there():
    model, tokenizer = make_architecture("llama")
    model.train()
    model.base_model.layers[0].eval()
    sample(model, tokenizer, length=2)
    assert model.training and model.base_model.layers[1].training
    assert not any(module.training for module in model.base_model.layers[0].modules())


# --- what needs the cache and does not change the mode ----------------------------------------------------------------


def test_keys_and_values_that_would_be_dropped_are_refused(dropping):
    model, tokenizer, drop = dropping
    rollout = sample(model, tokenizer)
    expected = score(model, rollout, share_prompts=False)[0]
    drop()
    for call in (lambda: run_prompts(model, rollout.prompt_ids, rollout.prompt_mask), lambda: score(model, rollout)):
        with pytest.raises(ValueError, match="model is in training mode with gradient checkpointing on.*share_prompts"):
            call()
    assert (score(model, rollout, share_prompts=False)[0] - expected)[rollout.mask].abs().max() < 1e-5


def test_the_refusal_is_for_layers_that_do_drop_them(dropping):
    model, tokenizer, drop = dropping
    ids = encode_prompts(tokenizer, ["ab+3"])[0]
    kept = []
    for change in (lambda: None, drop):
        change()
        cache = DynamicCache(config=model.config)
        model.base_model(ids, past_key_values=cache, use_cache=True)
        kept.append(all(layer.get_seq_length() == ids.shape[1] for layer in cache.layers))
    assert kept == [True, False]


# --- the real model ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_model_that_has_not_been_trained_seems_to_have_collapsed():
    if not (smollm2.folder() / "config.json").is_file():
        pytest.skip(f"{smollm2.NAME} is not on this machine: `{smollm2.GET}` fetches it")
    model, tokenizer = load_policy(smollm2.NAME, device="cpu")
    question = "What is the capital of France?"
    ids = encode_prompts(tokenizer, [[{"role": "user", "content": question}]])[0]
    model.gradient_checkpointing_enable()
    model.train()
    broken, right = "The-------------", "The capital of France is Paris."
    assert tokenizer.decode(greedy(model, ids, 14), skip_special_tokens=True) == broken
    assert reply(model, tokenizer, question, 14) == right and drops_cache(model), "in the same state, repaired"
    model.eval()
    assert tokenizer.decode(greedy(model, ids, 14), skip_special_tokens=True) == right
