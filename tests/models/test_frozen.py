"""A frozen copy keeps its weights while the model changes, and a silenced model has no dropout left."""

import copy

import pytest
import torch

from grpo_lab.models.frozen import disable_dropout, frozen_copy
from tests.support.architectures import make_architecture
from tests.support.small_policy import same_weights, weights


def test_a_frozen_copy_shares_no_tensor_and_leaves_the_model_as_it_is():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)).train()
    reference = frozen_copy(model)
    assert all(p.requires_grad for p in model.parameters())
    assert model.training
    assert not any(p.requires_grad for p in reference.parameters())
    assert not any(module.training for module in reference.modules())
    start = copy.deepcopy(reference.state_dict())
    with torch.no_grad():
        model[0].weight.add_(1)
    assert torch.equal(reference[0].weight, start["0.weight"])
    assert torch.equal(model[0].weight, start["0.weight"] + 1)


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
