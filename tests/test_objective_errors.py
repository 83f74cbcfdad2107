"""Wrong input to the objective: an error that names the argument, with and without the shape checker of the tests."""

import inspect
import math

import pytest
import torch

from grpo_lab.objective import aggregate, clipped_surrogate, importance_ratio, policy_loss
from tests.support.agreement import batch


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"loss_type": "ppo"}, "loss_type"),
        ({"loss_type": "dr_grpo"}, "max_completion_length"),
        ({"loss_type": "dr_grpo", "max_completion_length": 0}, "max_completion_length"),
        ({"importance_sampling_level": "batch"}, "level"),
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": 1.5}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon_high": -0.1}, "epsilon_high"),
        ({"delta": 1.1}, "delta"),
        ({"delta": -2.0}, "delta"),
        ({"beta": -0.1}, "beta"),
        ({"beta": math.nan}, "beta"),
        ({"kl_estimator": "k4"}, "kl_estimator"),
        ({"beta": 0.1, "ref_logp": None}, "ref_logp"),
        ({"loss_type": "dapo", "num_items": -3}, "num_items"),
        ({"loss_type": "dapo", "num_items": math.nan}, "num_items"),
    ],
)
def test_bad_settings_are_named(keywords, named):
    logp, old, ref, advantages, mask = batch(2, 3, 0)
    with pytest.raises(ValueError, match=named):
        policy_loss(logp, advantages, mask, old, **{"ref_logp": ref, **keywords})


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("mask", torch.ones(2, 3)),
        ("mask", torch.ones(2, 1, dtype=torch.bool)),
        ("advantages", torch.zeros(3).double()),
        ("advantages", torch.zeros(1, 3).double()),
        ("advantages", torch.zeros(()).double()),
        ("old_logp", torch.zeros(2, 1).double()),
        ("ref_logp", torch.zeros(1, 3).double()),
    ],
)
def test_bad_shapes_are_named_with_and_without_the_shape_checker(name, bad):
    logp, old, ref, advantages, mask = batch(2, 3, 0)
    arguments = {"advantages": advantages, "mask": mask, "old_logp": old, "ref_logp": ref, name: bad}
    with pytest.raises(ValueError, match=name):  # as a reader calls it, without the checker of the tests
        inspect.unwrap(policy_loss)(logp, **arguments, beta=0.1)
    with pytest.raises((ValueError, TypeError), match=name):
        policy_loss(logp, **arguments, beta=0.1)


def test_bad_pieces():
    x, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="level"):
        importance_ratio(x, x, mask, "sentence")
    with pytest.raises(ValueError, match="loss_type"):
        aggregate(x, mask, "mean")
    with pytest.raises(ValueError, match="max_completion_length"):
        aggregate(x, mask, "dr_grpo")
    for keywords in ({"epsilon": 2.0}, {"epsilon_high": -1.0}, {"delta": 0.5}):
        with pytest.raises(ValueError, match=next(iter(keywords))):
            clipped_surrogate(x, torch.zeros(1), **keywords)
