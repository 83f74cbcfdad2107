"""Gradient checkpointing in training mode drops the cache: sampling changes the mode for a while and restores it."""

import pytest
import torch

from tests.support.architectures import make_architecture
from tests.support.sampling import sample

LENGTH = 12
# A function that sets the training mode of modules, and the distance in layers from one checkpointed layer to the next.
DROPS_CACHE = {
    "all modules": (lambda model: model.train(), 1),
    "every second layer is checkpointed": (lambda model: model.train(), 2),
    "one layer alone": (lambda model: model.base_model.layers[1].train(), 1),
}


@pytest.fixture(params=DROPS_CACHE)
def model_and_drop(request):
    """A model in evaluation mode, its tokenizer, and a function that makes the model drop its cache."""
    model, tokenizer = make_architecture("llama", num_hidden_layers=3)
    set_modes, every = DROPS_CACHE[request.param]

    def drop():
        model.gradient_checkpointing_enable(every_n_layers=every)
        set_modes(model.eval())

    return model, tokenizer, drop


def modes(model) -> list[tuple[bool, bool | None]]:
    return [(module.training, getattr(module, "gradient_checkpointing", None)) for module in model.modules()]


def equal_rollouts(left, right) -> bool:
    names = ("completion_ids", "mask", "logp", "entropy", "truncated")
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in names) and left.texts == right.texts


@pytest.mark.parametrize("cache", ["dynamic", None])
def test_samples_are_those_of_evaluation_mode_bit_for_bit(cache, model_and_drop):
    model, tokenizer, drop = model_and_drop
    expected = sample(model, tokenizer, length=LENGTH, cache_implementation=cache)
    assert len(set(expected.texts)) > 3
    drop()
    before = modes(model)
    assert equal_rollouts(sample(model, tokenizer, length=LENGTH, cache_implementation=cache), expected)
    assert modes(model) == before, "the state was repaired for a while only"
