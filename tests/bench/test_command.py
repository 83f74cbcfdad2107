"""The command alternates the runs of a pair, and prints and writes the ratios; stubs take the place of training."""

import json
import shutil
from dataclasses import asdict

import pytest
import torch

from grpo_lab.bench import __main__ as command
from grpo_lab.bench import measure
from grpo_lab.bench.comparison import Comparison, RunPair, comparison_table
from grpo_lab.bench.record import PHASE_LABELS, MachineRates, PhaseResult, RunResult, RunSpec, Setup, phase_table
from grpo_lab.models.folders import TINY
from tests.support.bench_record import run_result
from tests.support.refusals import refusal_of
from tests.support.scripts import ROOT


@pytest.fixture
def run_specs(monkeypatch):
    """Replace fresh processes by made-up results, in which TRL is slow and slows down; return the specs of the runs."""
    specs: list[RunSpec] = []

    def run(measured, spec, threads):
        assert threads == spec.setup.threads
        if measured is measure.measure_phases:
            ones = dict.fromkeys(PHASE_LABELS, 1.0)
            return PhaseResult(ones, ones, ones, "float32", MachineRates(flops=1.0, bytes=2.0), "stub")
        specs.append(spec)
        step = len(specs) * (2.0 if spec.engine == "trl" else 1.0)
        return run_result([step * k for k in range(1, 7)], [1.0] * 6)

    monkeypatch.setattr(command, "run_in_process", run)
    monkeypatch.setattr(command, "find_spec", lambda package: True)
    return specs


def test_bench_runs_alternate_share_all_but_the_trainer_and_are_printed_and_written(run_specs, tmp_path, capsys):
    folder, file = str(shutil.copytree(TINY, tmp_path / "model")), tmp_path / "report.json"
    options = ["--model", folder, "--precision", "fp32-master", "--steps", "6", "--seeds", "5", "6"]
    assert command.main(["--against", "trl", *options, "--json", str(file)]) == 0
    order = [(5, "ours"), (5, "trl"), (6, "trl"), (6, "ours")]
    setup = Setup(model=folder, precision="fp32-master", device="cpu", steps=6, threads=1)
    assert run_specs == [RunSpec(setup, seed, engine) for seed, engine in order]
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["setup"] == asdict(setup)
    assert report["machine"]["torch"] == torch.__version__
    steps = report["summary"]["seconds_per_step"]
    assert (steps["ours"], steps["trl"]) == (2.5, 5.0)  # medians of 1 and 4, of 4 and 6
    assert steps["ratios"] == [1 / 4, 4 / 6]
    assert len(report["pairs"][1]["trl"]["history"]["reward"]) == 6
    captured = capsys.readouterr()
    rates = MachineRates(**report["phases"].pop("rates"))
    phases = PhaseResult(**report["phases"], rates=rates)
    engines = ("ours", "trl")
    pairs = [
        RunPair(pair["seed"], {engine: RunResult(**pair[engine]["history"]) for engine in engines})
        for pair in report["pairs"]
    ]
    comparison = Comparison(Setup(**report["setup"]), pairs)
    assert captured.out.strip() == phase_table(phases) + "\n" + comparison_table(comparison)
    assert "seed 6, trl: 6 steps begin" in captured.err
    assert "a step             5.000" in captured.out
    assert command.main([]) == 0
    assert len(run_specs) == 4, "no run against TRL"
    assert "TRL" not in capsys.readouterr().out


def test_entries_of_a_bench_record_are_those_of_the_recorded_benchmarks(run_specs, tmp_path):
    """The files of earlier benchmarks and those of today have the same form, so docs/bench_tables.py reads both."""

    def form(value):
        if isinstance(value, dict):
            return {name: form(part) for name, part in value.items()}
        return [form(value[0])] if isinstance(value, list) else None

    folder, file = str(shutil.copytree(TINY, tmp_path / "model")), tmp_path / "report.json"
    options = ["--model", folder, "--steps", "6", "--seeds", "5", "--json", str(file)]
    assert command.main(["--against", "trl", *options]) == 0
    recorded = json.loads((ROOT / "notebooks/runs/bench_tiny.json").read_text(encoding="utf-8"))
    assert json.dumps(form(json.loads(file.read_text(encoding="utf-8")))) == json.dumps(form(recorded))


def test_bench_command_refuses_wrong_models_precisions_and_devices(run_specs, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for option, value, expected in [
        ("--model", str(tmp_path / "none"), "and there is no such folder"),
        ("--precision", "bf16", "argument --precision: invalid choice: 'bf16'"),
        ("--device", "cuda", "--device is 'cuda'; expected None or one of cpu"),
    ]:
        assert expected in refusal_of(command.main, "--against", "trl", option, value)
    monkeypatch.setattr(command, "find_spec", lambda package: None)
    assert "trl is not installed; pip install trl==" in refusal_of(command.main, "--against", "trl")
