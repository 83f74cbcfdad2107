"""The proof of `grpo_lab.diagnose`: recorded runs with a planted fault each, and healthy ones; and some made live."""

import copy
import sys
from collections import Counter

import pytest

from grpo_lab.config.settings import SamplingParams
from grpo_lab.diagnose import RULES, diagnose
from grpo_lab.rollout.environments.environment import sample_rollout
from tests.support.scripts import load_script

recorder = load_script("notebooks/runs/record_faults.py")
fault_setups = sys.modules["fault_setups"]
RECORD = recorder.read()
# No recorded run has an environment: these two are planted in tests/diagnose/test_planted.py.
NOT_RECORDED = {"environment_tokens_in_loss", "completions_reencoded"}
# What the rules miss: run, engine and seeds.
MISSED = {
    ("answers shifted", "trl"): (41,),
    ("rate 3e-3, KL", "ours"): (13,),
    ("fp32 reference", "trl"): (13, 41),
    ("bf16 AdamW, sevens", "trl"): (11,),
    ("rate 1e-6", "ours"): (13,),
    ("k1", "ours"): (1, 2),
    ("k1, near", "ours"): (131,),
    ("own reference, near", "ours"): (131,),
    ("own reference, near", "trl"): (131,),
    ("rate 1e-6", "trl"): (13, 41),
}


ENGINES = ["ours", pytest.param("trl", marks=pytest.mark.slow)]
PLANTED_BY_PATCH = {
    name: plant
    for part in recorder.PARTS.values()
    for name, plant in part.items()
    if plant.patch is not fault_setups.no_patch
}


def planted() -> list[dict]:
    return [run for run in RECORD["runs"] if run["finding"]]


def healthy() -> list[dict]:
    return [run for run in RECORD["runs"] if not run["finding"]]


def test_record_holds_every_run_of_the_plan_and_enough_of_each_kind():
    recorded = {(run["part"], run["name"], run["engine"], run["seed"]) for run in RECORD["runs"]}
    assert recorded == set(recorder.jobs())
    for run in RECORD["runs"]:
        plant = recorder.PARTS[run["part"]][run["name"]]
        assert (run["finding"], run["how"], run["task"]) == (plant.finding, plant.description, plant.task)
        settings = recorder.COMMON | plant.settings
        assert all(settings[name] == value for name, value in run["settings"].items() if name in settings)
    for part in ("seen", "kept"):
        seeds = Counter((run["finding"], run["engine"]) for run in planted() if run["part"] == part)
        assert {finding for finding, _ in seeds} == {rule.name for rule in RULES} - NOT_RECORDED
        assert min(seeds.values()) >= 3
    assert len(healthy()) >= 90
    assert {run["engine"] for run in RECORD["runs"]} == {"ours", "trl"}


# The run-time checks of shapes would take half of the time of these two tests; tests/diagnose has them.
@pytest.mark.usefixtures("no_checker")
@pytest.mark.parametrize("engine", ENGINES)
def test_each_planted_fault_is_named_but_those_that_are_listed(engine):
    missed = {}
    for run in planted():
        if run["engine"] == engine and run["finding"] not in recorder.diagnosed_names(run):
            missed[run["name"], run["engine"]] = (*missed.get((run["name"], run["engine"]), ()), run["seed"])
    assert missed == {run: seeds for run, seeds in MISSED.items() if run[1] == engine}


@pytest.mark.usefixtures("no_checker")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("every", [150, pytest.param(4, marks=pytest.mark.slow)])
def test_diagnose_finds_nothing_in_healthy_runs_at_any_step(every, engine):
    for run in (run for run in healthy() if run["engine"] == engine):
        history, settings = recorder.unpack_history(run), recorder.entry_settings(run)
        for steps in range(8, len(history) + 1, every):
            assert diagnose(history[:steps], settings) == [], (run["name"], run["engine"], steps)
        assert recorder.diagnosed_names(run) == [], (run["name"], run["engine"])


def test_a_fast_recording_of_faults_is_complete_and_not_repeated(tmp_path, capsys):
    arguments = ["--fast", "--json", str(tmp_path / "faults.json")]
    recorder.main([*arguments, "--names", "raw rewards"])
    runs = recorder.read(tmp_path / "faults.json")["runs"]
    assert [run["seed"] for run in runs] == [11, 12, 13] and {run["steps"] for run in runs} == {2}
    capsys.readouterr()
    recorder.main([*arguments, "--names", "raw rewards"])
    assert capsys.readouterr().out == ""
    assert "entropy_collapse" in recorder.table({"runs": runs})


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(name, engine, marks=[pytest.mark.slow] * (engine == "trl"))
        for name, plant in PLANTED_BY_PATCH.items()
        for engine in plant.engines
    ],
)
def test_each_patch_changes_something_that_exists(name, engine, tiny, monkeypatch):
    monkeypatch.setattr(fault_setups, "train", lambda *_: None)  # some patches train a policy before the run
    with PLANTED_BY_PATCH[name].patch(engine, copy.deepcopy(tiny[0])):
        pass


def test_hidden_settings_of_the_sampler_are_those_it_draws_with(tiny):
    rows = fault_setups.problems("guess", "test", 0)[:2]
    with fault_setups.sample_with(top_k=1)("ours", tiny[0]):
        first, second = sample_rollout(*tiny, rows, SamplingParams(2, 4)).completion_ids.view(2, 2, -1).unbind(1)
    assert first.equal(second)


def test_stale_sampler_draws_from_the_weights_it_began_with(tiny):
    model, rows = copy.deepcopy(tiny[0]), fault_setups.problems("guess", "test", 0)[:2]
    greedy = SamplingParams(2, 4, top_k=1)
    expected = sample_rollout(*tiny, rows, greedy).completion_ids
    with fault_setups.stale_sampler("ours", model):
        for parameter in model.parameters():
            parameter.detach().fill_(float("nan"))
        assert sample_rollout(model, tiny[1], rows, greedy).completion_ids.equal(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["epsilon 3e-4", "log of 0", "no box", "no mean", "own reference"])
def test_a_fault_planted_now_is_named(name):
    entry = recorder.make_entry("seen", name, recorder.OURS, seed=40)
    assert entry["finding"] in recorder.diagnosed_names(entry)
