"""The proof of `grpo_lab.diagnose`: recorded runs with a planted fault each, and healthy ones; and some made live."""

import json
import math
from collections import Counter

import pytest

from grpo_lab.diagnose import RULES
from tests.support.scripts import load_script

recorder = load_script("notebooks/runs/record_faults.py")
RECORD = recorder.read()
# What the rules do not tell of the part that was kept, as it came out when they were fixed: run, engine, seeds.
MISSED = {
    ("greedy", "trl"): (11,),
    ("entropy sign, sevens", "ours"): (11,),
    ("entropy sign, sevens", "trl"): (11,),
    ("rate 3e-3, KL", "trl"): (11,),
    ("fp32 reference", "trl"): (11,),
    ("answers shifted", "ours"): (11,),
    ("answers shifted", "trl"): (11,),
    ("no clip range", "ours"): (11,),
}
ALARMS: dict[tuple[str, str], tuple[int, ...]] = {}


def of(part: str, planted: bool) -> list[dict]:
    return [run for run in RECORD["runs"] if run["part"] == part and bool(run["finding"]) == planted]


def test_record_holds_every_run_of_the_plan_and_enough_of_each_kind():
    there = {(run["part"], run["name"], run["engine"], run["seed"]) for run in RECORD["runs"]}
    assert there == set(recorder.jobs(list(recorder.PARTS), None))
    for run in RECORD["runs"]:
        plant = recorder.PARTS[run["part"]][run["name"]]
        assert (run["finding"], run["how"], run["task"]) == (plant.finding, plant.how, plant.task)
        wanted = recorder.COMMON | plant.settings
        assert all(wanted[name] == value for name, value in run["settings"].items() if name in wanted)
    for part, least in {"seen": 3, "kept": 1}.items():
        seeds = Counter((run["finding"], run["engine"]) for run in of(part, True))
        assert {finding for finding, _ in seeds} == {rule.name for rule in RULES} and min(seeds.values()) >= least
    assert len(of("seen", False)) + len(of("kept", False)) >= 36


def test_each_planted_fault_of_the_seen_part_is_named_and_no_healthy_run_is_called_ill():
    for run in of("seen", True):
        assert run["finding"] in recorder.named(run), (run["name"], run["engine"], run["seed"])
    for run in of("seen", False):
        assert recorder.named(run) == [], (run["name"], run["engine"])


def test_kept_part_comes_out_as_it_did_when_the_rules_were_fixed():
    missed, alarms = {}, {}
    for run in (run for run in RECORD["runs"] if run["part"] == "kept"):
        names, key = recorder.named(run), (run["name"], run["engine"])
        if run["finding"] and run["finding"] not in names:
            missed[key] = (*missed.get(key, ()), run["seed"])
        if not run["finding"] and names:
            alarms[key] = (*alarms.get(key, ()), run["seed"])
    assert missed == MISSED and alarms == ALARMS


def test_a_history_comes_out_of_the_file_as_it_went_in():
    history = [
        {"step": 1, "reward": 0.123456, "loss": 0.0, "time/rollout": 1.0, "kl": 0.0},
        {"step": 2, "reward": None, "loss": 0.0, "time/rollout": 2.0, "kl": math.nan, "eval/reward": 0.5},
        {"step": 3, "reward": 0.2, "loss": 0.0, "time/rollout": 2.0, "kl": 12345.6, "eval/reward": 0.5},
    ]
    entry = json.loads(json.dumps({"steps": 3, "history": recorder.packed(history)}))
    first, second, third = recorder.unpacked(entry)
    assert first == {"step": 1, "reward": 0.1235, "loss": 0.0, "kl": 0.0}
    assert math.isnan(second.pop("kl")) and second == {"step": 2, "reward": None, "loss": 0.0, "eval/reward": 0.5}
    assert third == {"step": 3, "reward": 0.2, "loss": 0.0, "kl": 12350.0, "eval/reward": 0.5}


def test_a_short_recording_is_a_whole_file_and_is_not_made_again(tmp_path, capsys):
    arguments = ["--fast", "--parts", "seen", "--engines", "ours", "--output", str(tmp_path / "faults.json")]
    recorder.main([*arguments, "--names", "KL sign"])
    made = recorder.read(tmp_path / "faults.json")["runs"]
    assert [run["seed"] for run in made] == [0, 1, 2] and {run["steps"] for run in made} == {2}
    assert all(run["history"]["kl"][0] < 1e-6 < run["history"]["kl"][1] for run in made)
    capsys.readouterr()
    recorder.main([*arguments, "--names", "KL sign"])
    assert capsys.readouterr().out == ""
    assert "kl_explosion" in recorder.table({"runs": made})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["epsilon 3e-4", "log of 0", "no box"])
def test_a_fault_planted_now_is_named(name):
    entry = recorder.record_of("seen", name, recorder.OURS, seed=40)
    assert entry["finding"] in recorder.named(entry)
