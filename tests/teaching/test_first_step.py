"""The movement of the weights in step 1, compared with a literal loop over the weights of two models."""

import copy

import pytest
import torch

from grpo_lab.models import load_policy
from grpo_lab.teaching.first_step import first_step_movement


@pytest.mark.parametrize("learning_rate", [1e-3, 2e-6])
def test_first_step_size_is_the_mean_distance_in_learning_rates(learning_rate, capsys):
    policy, _ = load_policy("tiny", device="cpu")
    start, measure = copy.deepcopy(policy), first_step_movement(policy)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += learning_rate * (torch.randn_like(weight) + 0.3)
    total, count = 0.0, 0
    for (name, before), after in zip(start.named_parameters(), policy.parameters(), strict=True):
        if name != "model.embed_tokens.weight":
            for w_0, w_1 in zip(before.flatten().tolist(), after.flatten().tolist(), strict=True):
                total, count = total + abs(w_1 - w_0), count + 1
    assert measure(1, {"learning_rate": learning_rate}) == pytest.approx(total / count / learning_rate, rel=1e-5)
    assert f"{total / count / learning_rate:.3f} learning rates" in capsys.readouterr().out


def test_first_step_size_looks_at_step_1_alone_and_at_the_weights_of_its_call():
    policy = torch.nn.Linear(2, 1)
    measure = first_step_movement(policy)
    with torch.no_grad():
        policy.weight += 0.5
    assert measure(2, {"learning_rate": 0.5}) is None and measure(1, {"learning_rate": 0.5}) == pytest.approx(2 / 3)
