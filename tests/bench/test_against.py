"""Pairs of runs are alternated, checked and put into ratios as the table says; the command takes no nonsense."""

import functools
import json
import shutil
import time

import pytest
import torch

from grpo_lab.bench import __main__ as command
from grpo_lab.bench import against, phases, train_worker
from grpo_lab.config.precision import PRECISIONS, slow_here
from grpo_lab.models.folders import TINY
from tests.support.refused import refused

# --- the arithmetic -------------------------------------------------------------------------------------------------


def record(seconds, rewards, **more):
    history = {"seconds": seconds, "cpu_seconds": [s / 2 for s in seconds], "reward": rewards}
    return {"history": history, "held_out_accuracy": 0.5, "peak_memory": 300} | more


def test_figures_of_a_run():
    rewards = [0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]  # means of five: 0.6, 0.8, 0.9
    figures = against.figures(record([4.0, 5.0, 6.0, 7.0, 8.5, 9.5, 10.0], rewards))
    assert figures == {
        "seconds_per_step": 1.0,  # of 4, 1, 1, 1, 1.5, 1, 0.5: the slow first step does not count for more than one
        "time_to_accuracy": 9.5,
        "cpu_seconds_per_step": 0.5,
        "cpu_time_to_accuracy": 4.75,
        "steps_to_accuracy": 6,
        "peak_memory": 300,
        "held_out_accuracy": 0.5,
    }


def pair(ours, trl):
    figures = dict.fromkeys((key for key, *_ in against.ROWS), 1.0)
    return {"seed": 0, "ours": figures | {"time_to_accuracy": ours}, "trl": figures | {"time_to_accuracy": trl}}


def test_ratios_are_taken_pair_by_pair():
    # Slow and fast hours of the machine: the ratio of the medians would be 1.
    summary = against.summarise([pair(1.0, 2.0), pair(10.0, 20.0), pair(2.0, 1.0)])["time_to_accuracy"]
    assert summary == {"ours": 2.0, "trl": 2.0, "ratio": 0.5, "ratio_min": 0.5, "ratio_max": 2.0, "pairs": 3}


def test_a_pair_without_a_time_makes_no_ratio():
    summary = against.summarise([pair(None, 2.0), pair(3.0, 4.0), pair(3.0, None)])["time_to_accuracy"]
    assert summary == {"ours": 3.0, "trl": 3.0, "ratio": 0.75, "ratio_min": 0.75, "ratio_max": 0.75, "pairs": 1}
    summary = against.summarise([pair(None, 2.0)])["time_to_accuracy"]
    assert summary == {"ours": None, "trl": 2.0, "ratio": None, "ratio_min": None, "ratio_max": None, "pairs": 0}


# --- pairs of runs, with stubs in place of training -----------------------------------------------------------------


class Stub:
    """In place of a fresh process: TRL is twice as slow, and slower still with each run."""

    def __init__(self):
        self.specs = []

    def __call__(self, module, spec):
        self.specs.append((module, spec))
        step = len(self.specs) * (2.0 if spec["trainer"] == "trl" else 1.0)
        return record([step * k for k in range(1, 7)], [1.0] * 6)


def test_runs_alternate_and_share_everything_but_the_trainer(capsys):
    stub = Stub()
    asked = {"model": "tiny", "precision": "fp32", "device": "cpu", "steps": 6}
    report = against.compare([5, 6], asked, run=stub)
    order = [(spec.pop("seed"), spec.pop("trainer")) for _, spec in stub.specs]
    assert order == [(5, "ours"), (5, "trl"), (6, "trl"), (6, "ours")]
    setup = asked | {"threads": 1}
    assert stub.specs == [(against.WORKER, setup)] * 4 and report["setup"] == setup
    steps = report["summary"]["seconds_per_step"]
    assert (steps["ours"], steps["trl"]) == (2.5, 5.0)  # medians of 1 and 4, of 4 and 6
    assert (steps["ratio_min"], steps["ratio_max"]) == (1 / 4, 4 / 6)
    assert [p["seed"] for p in report["pairs"]] == [5, 6] and len(report["pairs"][0]["trl"]["history"]["reward"]) == 6
    json.dumps(report)


# --- the command ----------------------------------------------------------------------------------------------------


def test_without_trl_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda package: None)
    assert "trl is not installed; pip install trl==" in refused(command.main, "--against", "trl")


def test_the_command_prints_the_table_and_writes_all(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "find_spec", lambda package: True)
    monkeypatch.setattr(against, "compare", functools.partial(against.compare, run=Stub()))
    file = tmp_path / "report.json"
    for options, steps in {"": 60, "--steps 6": 6}.items():
        command.main(["--against", "trl", "--seeds", "4", "7", "9", *options.split(), "--json", str(file)])
        report = json.loads(file.read_text(encoding="utf-8"))
        assert report["setup"]["steps"] == steps and [p["seed"] for p in report["pairs"]] == [4, 7, 9]
        shown = capsys.readouterr()
        assert shown.out.strip() == against.table(report) and f"seed 7, trl: {steps} steps begin" in shown.err
    assert report["machine"]["torch"] == torch.__version__ and report["machine"]["device"] == "cpu"


def test_the_model_the_precision_and_the_device_reach_the_one_that_loads(monkeypatch, tmp_path):
    class Reached(Exception):
        pass

    def load(name, device, precision):
        raise Reached(name, device, precision)

    monkeypatch.setattr(command, "find_spec", lambda package: True)
    monkeypatch.setattr(train_worker, "load_policy", load)
    alone = functools.partial(against.compare, run=lambda module, spec: train_worker.measure(spec))
    monkeypatch.setattr(against, "compare", alone)
    folder = str(shutil.copytree(TINY, tmp_path / "model"))
    with pytest.raises(Reached) as reached:
        command.main(["--against", "trl", "--model", folder, "--precision", "fp32-master"])
    assert reached.value.args == (folder, "cpu", "fp32-master")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for option, value, want in [
        ("--model", str(tmp_path / "none"), "and there is no such folder"),
        ("--precision", "bf16", "argument --precision: invalid choice: 'bf16'"),
        ("--device", "cuda", "--device is 'cuda'; expected one of cpu"),
    ]:
        assert want in refused(command.main, "--against", "trl", option, value)


# --- one step, phase by phase ---------------------------------------------------------------------------------------


def test_the_phases_of_a_step_add_up_and_its_products_are_those_of_its_tokens(monkeypatch):
    monkeypatch.setattr(phases, "rates", lambda: {"flops": 1e9, "bytes": 1e9})
    began = time.process_time()
    found = phases.measure({"model": "tiny", "precision": "fp32", "device": "cpu", "seed": 0, "steps": 2})
    assert 0 < sum(found["seconds"].values()) < time.process_time() - began
    products = found["flops"]
    assert products["backward"] == pytest.approx(2 * products["time/logprobs"], rel=0.01) != 0, "of inputs and weights"
    assert found["bytes"]["backward"] == 3 * found["bytes"]["time/logprobs"] > 0 and products["optimizer"] == 0
    assert phases.table(found).count("\n") == len(phases.PHASES) + 2


def test_a_processor_without_bf16_is_told_so_and_others_are_not(monkeypatch):
    said = []
    for capabilities in ({"avx2": True, "avx512_bf16": False}, {"avx2": True, "avx512_bf16": True}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found)
        said += [slow_here(torch.device("cpu"), PRECISIONS[mode]) for mode in ("fp32-master", "bf16-naive", "fp32")]
    assert [text is not None for text in said] == [True, True, False, False, False, False]
    assert said[0] == "this processor has no bf16, so fp32-master is several times slower than fp32"
