"""The recorder of notebook 07's arms: what is different in each of them, and that one thing is."""

from dataclasses import asdict, replace

import pytest
import torch

from grpo_lab.tasks import addition_problems
from tests.support.sampling import sample
from tests.support.scripts import load_script
from tests.support.worlds import make_world

record_arms = load_script("notebooks/runs/record_arms.py")


def test_an_arm_differs_from_the_default_by_what_it_says():
    default = asdict(record_arms.ARMS["default"])
    for name, arm in record_arms.ARMS.items():
        changed = {field for field, value in asdict(arm).items() if value != default[field]} - {"says"}
        expected = {"default": 0, "no baseline, +1": 2, "KL 1": 2, "shuffled, no momentum": 2}.get(name, 1)
        assert len(changed) == expected, name
    assert record_arms.ARMS["no baseline"] == replace(
        record_arms.ARMS["no baseline, +1"], shift=0.0, says=record_arms.ARMS["no baseline"].says
    )


def test_the_parts_of_the_loss_are_the_loss():
    model, tokenizer = make_world()
    rollout = sample(model, tokenizer, generations=20)
    whole, first, rest, no_end = (
        record_arms.tokens_in_loss(rollout, name) for name in ("all", "first", "rest", "no end")
    )
    assert torch.equal(whole, rollout.mask) and torch.equal(first | rest, whole) and not (first & rest).any()
    assert (first.sum(-1) == 1).all()
    assert torch.equal(whole.sum(-1) - no_end.sum(-1), (~rollout.truncated).long())


@pytest.mark.parametrize("name", ["default", "KL 1", "no end token"])
def test_a_run_of_one_step_is_recorded(name):
    made = record_arms.run(replace(record_arms.ARMS[name], steps=1), 0, addition_problems("test", 100, seed=1))
    assert {len(values) for values in made["metrics"].values()} == {1}
    after = made["after"]
    assert after["n"] == 100 and after["right_thinking"] <= min(after["right"], after["thinking"])
    assert 0.2 < after["thinking_probability"] < 0.3, "one step of the warm-up moves it a little"
