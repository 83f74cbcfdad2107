"""The recorder of notebook 06: what its rewards pay, what differs between its arms, and what it counts."""

import json

import pytest
import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.rollout import Rollout
from grpo_lab.tasks import addition_problems, addition_split
from tests.support.refused import refused
from tests.support.scripts import load_script

record_rewards = load_script("notebooks/runs/record_rewards.py")

THINKS = "<think>17+58=75\n75+42=117</think><answer>117</answer>"
GUESSES = "<answer>117</answer>"
SLIPS = "<think>17+58=65\n65+42=107</think><answer>107</answer>"


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("longer", [len(THINKS) / 100, len(GUESSES) / 100, len(SLIPS) / 100]),
        ("shorter", [-len(THINKS) / 100, -len(GUESSES) / 100, -len(SLIPS) / 100]),
        ("last_digit", [1 - 0.002 * len(text) for text in (THINKS, GUESSES, SLIPS)]),
        ("gated", [1.0, 0.0, 0.0]),
        ("silent", [0.0, 1.0, 0.0]),
        ("priced", [1.0, 1.0, -1.0]),
    ],
)
def test_what_the_rewards_pay(reward, expected):
    paid = getattr(record_rewards, reward)([THINKS, GUESSES, SLIPS], answer=["117"] * 3)
    assert paid == pytest.approx(expected)


def test_a_character_has_its_price():
    assert record_rewards.priced([GUESSES], answer=["117"], price=0.02) == pytest.approx([1 - 0.02 * len(GUESSES)])


def test_equations_are_counted_by_the_answer():
    counts = record_rewards.steps_by_outcome([THINKS, GUESSES, SLIPS], [1.0, 1.0, 0.0])
    assert counts == {"right": [2, 2, 1], "wrong": [1, 2, 1]}


def test_arms_differ_by_their_reward_and_where_they_say_so_by_start_or_problems():
    for name, arm in record_rewards.ARMS.items():
        assert arm.rare == name.startswith("rare")
        assert (arm.rows is addition_problems) != name.startswith("hard")
        assert arm.first == name.endswith("first token alone")


def test_the_first_token_alone_enters_the_loss_within_and_only_within():
    made = record_rewards.loop.make_experience
    ids = torch.tensor([[5, 6, 7], [5, 6, 0]])
    rollout = Rollout(
        prompt_ids=ids[:1], prompt_mask=ids[:1] > 0, prompt_of_row=torch.tensor([0, 0]),
        completion_ids=ids, mask=ids > 0, truncated=ids[:, 0] < 0,
        logp=torch.zeros(2, 3), entropy=torch.zeros(2, 3), texts=["a", "b"],
    )  # fmt: skip
    arguments = rollout, torch.tensor([1.0, 0.0]), GRPOConfig(num_generations=2, generation_batch_size=2)
    with record_rewards.first_token_alone():
        inside = record_rewards.loop.make_experience(*arguments)
    assert record_rewards.loop.make_experience is made
    assert inside.mask.tolist() == [[True, False, False]] * 2
    assert made(*arguments).mask.sum() == 5


def test_sums_of_four_numbers_keep_their_split():
    for split in ("train", "test"):
        rows = record_rewards.four_numbers(split, 20, seed=0)
        assert all(len(row["operands"]) == 4 and addition_split(row["operands"]) == split for row in rows)


def test_runs_are_recorded_once_and_in_order(tmp_path):
    arguments = ["--fast", "--seeds", "0", "--output_dir", str(tmp_path)]
    record_rewards.main([*arguments, "--arms", "rare, gated", "shorter"])
    made = json.loads((tmp_path / "rewards.json").read_text(encoding="utf-8"))
    assert [run["arm"] for run in made["runs"]] == ["shorter", "rare, gated"]
    assert all(0.02 <= limit["advantages"] < 0.08 for limit in made["limits"])
    for run in made["runs"]:
        assert len(run["metrics"]["thinking"]) == len(run["metrics"]["reward"]) == 2
        assert set(run["before"]) == set(run["after"])
    times = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*-0.json")}
    record_rewards.main([*arguments, "--arms", "shorter"])
    assert times == {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*-0.json")}, "none is made twice"


def test_an_unknown_arm_is_named():
    assert "longer" in refused(record_rewards.main, "--arms", "lnger")
