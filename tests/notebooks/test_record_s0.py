"""The recorder of notebook 08, with the tiny model in place of the real one: what it runs, writes and takes up."""

import json

import pytest

from tests.support.scripts import load_script

record_s0 = load_script("notebooks/runs/record_s0.py")


def test_runs_and_stories_are_recorded_once(tmp_path):
    some = ["--fast", "--stand_in", "tiny", "--seeds", "0", "--rates", "2e-6", "--output_dir", str(tmp_path)]
    record_s0.main(some)
    made = json.loads((tmp_path / "s0.json").read_text(encoding="utf-8"))
    assert [(run["model"], run["seed"]) for run in made["runs"]] == [("tiny", 0), ("smollm2", 0)]
    for run in made["runs"]:
        assert len(run["best_of_step"]) == 2 and all(len(values) == 2 for values in run["metrics"].values())
        assert len(run["after"]["rates"]) == len(made["questions"][run["model"]]) == 4
    assert [told["example"] for told in made["stories"]] == [False, True]
    assert all(len(group) == record_s0.GROUP for told in made["stories"] for group in told["rewards"])
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir() if file.name != "s0.json"}
    record_s0.main(some)
    assert before == {name: (tmp_path / name).stat().st_mtime_ns for name in before}, "nothing is made twice"


def test_an_example_stands_before_the_story_and_changes_nothing_else():
    plain, shown = record_s0.stories(False, 2), record_s0.stories(True, 2)
    for one, other in zip(plain, shown, strict=True):
        assert [one["prompt"][0], one["prompt"][-1], one["answer"]] == [
            other["prompt"][0],
            other["prompt"][-1],
            other["answer"],
        ]
        assert len(other["prompt"]) == len(one["prompt"]) + 2


def test_the_best_of_a_step_is_noted_and_the_reward_is_as_without():
    reward = record_s0.BestOfStep()
    said = [[{"role": "assistant", "content": text}] for text in ("five", "4")]
    assert reward(said, answer=["4", "4"]) == pytest.approx([-1.008, 0.998])
    assert reward.noted == [[0.998, "4"]]


def test_the_settings_are_those_of_s0():
    wanted = {"beta": 0.05, "num_iterations": 2, "num_generations": 4, "ref_model_device": "cpu", "epsilon": 0.2}
    assert {name: record_s0.S0[name] for name in wanted} == wanted
    assert record_s0.RATES["tiny"][0] == record_s0.RATES["smollm2"][0] == 2e-6 and record_s0.STEPS["tiny"] == 30
