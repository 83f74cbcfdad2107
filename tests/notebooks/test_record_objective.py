"""The recorder of notebook 05: each arm changes what its name says, and nothing that is there is made again."""

import json
from pathlib import Path

from grpo_lab.config import GRPOConfig
from grpo_lab.objective.family import FAMILY, own_settings
from tests.support.scripts import load_script

PATH = Path(__file__).parents[2] / "notebooks" / "runs" / "record_objective.py"
recorder = load_script("notebooks/runs/record_objective.py")
ARMS, COMMON = recorder.ARMS, recorder.COMMON


def test_arms_that_are_compared_differ_in_one_thing():
    eight = ARMS["8 updates"].change
    for name in ("8 updates, no clip", "8 updates, upper clip", "8 updates, lower clip"):
        assert ARMS[name].change.keys() - eight.keys() <= {"epsilon", "epsilon_high"}
        assert {key: ARMS[name].change[key] for key in eight} == eight
    for name in ("1 update", "2 updates", "4 updates", "bonus 0.01", "bonus 0.3", "bonus 1.0"):
        assert len(ARMS[name].change) <= 1 and ARMS[name].batches == ARMS["8 updates"].batches
    range_off = {name: ARMS["8 updates, no clip"].change[name] for name in ("epsilon", "epsilon_high")}
    for name in ("8 parts", "8 updates, small steps"):
        without = name.replace(",", ", no clip,") if "," in name else f"{name}, no clip"
        assert ARMS[without].change == ARMS[name].change | range_off
    assert ARMS["8 updates, small steps"].change == eight | {"learning_rate": 5e-5}
    assert ARMS["8 parts, 4 problems"].change == ARMS["8 parts"].change | {"num_generations": 128}
    assert ARMS["grpo"].change | {"loss_type": "dr_grpo"} == ARMS["dr_grpo"].change


def test_three_arms_make_as_many_updates_and_two_see_as_many_answers():
    made = {}
    for name in ("8 updates", "fresh", "8 parts"):
        config = GRPOConfig(**(COMMON | ARMS[name].change))
        made[name] = (
            config.updates_per_step * ARMS[name].batches,
            config.generation_batch_size * ARMS[name].batches,
            config.update_batch_size,
        )
    assert made["fresh"] == made["8 parts"] == (128, 8 * made["8 updates"][1], 64)
    assert made["8 updates"][::2] == (128, 64)


def test_what_is_there_is_not_made_again(tmp_path):
    path = tmp_path / "objective.json"
    command = ["--fast", "--output", str(path), "--seeds", "0"]
    recorder.main([*command, "--arms", "8 updates, no clip"])
    first = json.loads(path.read_text(encoding="utf-8"))
    recorder.main([*command, "--arms", "1 update", "8 updates, no clip"])
    both = json.loads(path.read_text(encoding="utf-8"))
    assert both["runs"][:1] == first["runs"] and [run["arm"] for run in both["runs"][1:]] == ["1 update"]
    for run in both["runs"]:
        assert len(run["thinking"]) == 2 and all(len(values) == 2 for values in run["metrics"].values())
        assert run["metrics"]["clip_ratio/region_mean"] == [0, 0]


def test_the_record_holds_every_arm_with_every_seed():
    record = json.loads(PATH.with_name("objective.json").read_text(encoding="utf-8"))
    assert {(run["arm"], run["seed"]) for run in record["runs"]} == {
        (name, s) for name, arm in ARMS.items() for s in arm.seeds
    }
    assert record["settings"].items() >= COMMON.items() and record["machine"]


def test_the_family_has_its_whole_settings_and_the_missing_one_is_four_updates():
    for name, member in FAMILY.items():
        whole = GRPOConfig(**(COMMON | recorder.FOUR | own_settings(member) | recorder.FOR_THIS_MODEL))
        arm = ARMS["4 updates" if name == "BNPO" else f"family: {name}"]
        made = GRPOConfig(**(COMMON | arm.change))
        differs = {key for key, value in vars(whole).items() if vars(made)[key] != value}
        assert differs == ({"loss_type"} if name == "BNPO" else set())  # in one part, bnpo is dapo
        assert made.per_device_train_batch_size == made.update_batch_size == 64 and made.updates_per_step == 4
