"""The recorder of notebook 07b, with the tiny model in place of the real one: what it changes, writes and takes up."""

import json

import pytest
import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.objective import part_loss
from grpo_lab.rollout import end_token_ids
from grpo_lab.trainer.experience import make_experience
from tests.support.refused import refused
from tests.support.sampling import sample
from tests.support.scripts import load_script
from tests.support.worlds import make_world

record_smollm2 = load_script("notebooks/runs/record_smollm2.py")


def record(folder, *arguments):
    record_smollm2.main(["--fast", "--model", "tiny", "--device", "cpu", "--output_dir", str(folder), *arguments])
    return json.loads((folder / "smollm2.json").read_text(encoding="utf-8"))


def test_every_arm_is_recorded_once_and_in_order(tmp_path):
    some = ["length price", "plain", "no end token", "bf16 weights"]
    made = record(tmp_path, "--seeds", "0", "--arms", *some)
    in_order = [name for name in record_smollm2.ARMS if name in some]
    assert [run["arm"] for run in made["runs"]] == in_order
    assert set(made["base"]) == {"fp32", "bf16-naive"} and made["settings"]["max_steps"] == 2
    for run in made["runs"]:
        assert all(len(values) == 2 for values in run["metrics"].values())
        after = run["after"]
        assert after["sampled"]["n"] == after["greedy"]["n"] == 2 and len(after["samples"]) == len(after["problems"])
        assert len(after["replies"]) == 10
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir() if file.name != "smollm2.json"}
    again = record(tmp_path, "--seeds", "0", "1", "--arms", "plain")
    assert [(run["arm"], run["seed"]) for run in again["runs"] if run["arm"] == "plain"] == [("plain", 0), ("plain", 1)]
    assert len(again["runs"]) == 5, "what other processes made is in the record, too"
    assert before == {name: (tmp_path / name).stat().st_mtime_ns for name in before}, "nothing is made twice"


def test_an_arm_differs_from_the_plain_one_by_what_it_says():
    plain = record_smollm2.ARMS["plain"]
    assert plain.change == {} and plain.precision is None
    for name, arm in record_smollm2.ARMS.items():
        changed = {key for key in arm.change if key != "log_kl"}
        others = [arm.rows is not plain.rows, arm.precision is not None, arm.train is not plain.train]
        if name == "length price":  # beside "four digits", from which it differs by the reward alone
            assert arm.rows is record_smollm2.ARMS["four digits"].rows and arm.reward is not plain.reward
        elif name == "KL k1":  # beside "KL k3"
            assert arm.change | {"kl_estimator": "k3"} == record_smollm2.ARMS["KL k3"].change | {"kl_estimator": "k3"}
        elif name != "plain":
            assert len(changed) + sum(others) == 1, name


def test_without_its_end_token_a_completion_is_one_token_shorter_and_a_truncated_one_is_whole():
    model, tokenizer = make_world()
    rollout = sample(model, tokenizer, generations=20)
    rewards = torch.arange(len(rollout.mask)).float() % 3
    experience = make_experience(rollout, rewards, GRPOConfig(num_generations=20, generation_batch_size=20))
    cut = record_smollm2.without_end(experience)
    lengths, shorter = experience.mask.sum(-1), cut.mask.sum(-1)
    assert rollout.truncated.any() and (lengths == 1).any()
    assert torch.equal(lengths - shorter, (~rollout.truncated).long())
    assert not (cut.mask & ~experience.mask).any() and not cut.active[shorter == 0].any()
    ends = experience.mask & ~cut.mask
    assert torch.isin(rollout.completion_ids[ends], torch.tensor(end_token_ids(model, tokenizer))).all()
    # No gradient reaches the end token.
    logp = torch.zeros_like(rollout.logp, requires_grad=True)
    loss, _ = part_loss(logp, cut.advantages, cut.mask, len(cut), cut.mask.sum())
    loss.backward()
    assert (logp.grad[ends] == 0).all() and logp.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--arms", "plane"], "plain"),
        (["--seeds", "100"], "--seeds is 100; it must lie between 0 and 99"),
        (["--threads", "0"], "--threads is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_recorded_is_named(arguments, says):
    assert says in refused(record_smollm2.main, *arguments)
