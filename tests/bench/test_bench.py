"""The benchmark alternates the runs of a pair and reports ratios, and the phases of a step add up to the step.

tests/train/engines compares problems, settings and each gradient of the two trainers.
"""

import json
import os
import shutil
import time

import pytest
import torch

from grpo_lab.bench import __main__ as command
from grpo_lab.bench import measure, tables
from grpo_lab.bench.process import in_a_process
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, slow_here
from grpo_lab.models.folders import TINY
from grpo_lab.rollout import end_token_ids
from grpo_lab.tasks import TASKS
from grpo_lab.trainer.run_inputs import RunInputs
from tests.support.refused import refused

# --- the arithmetic -------------------------------------------------------------------------------------------------


def record(seconds, rewards):
    return {"seconds": seconds, "cpu_seconds": [s / 2 for s in seconds], "reward": rewards, "peak_memory": 300}


def test_figures_of_a_run():
    rewards = [0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]  # means of five: 0.6, 0.8, 0.9
    assert tables.figures(record([4.0, 5.0, 6.0, 7.0, 8.5, 9.5, 10.0], rewards)) == {
        "seconds_per_step": 1.0,  # median of 4, 1, 1, 1, 1.5, 1, 0.5: the slow first step counts once
        "time_to_accuracy": 9.5,
        "cpu_seconds_per_step": 0.5,
        "cpu_time_to_accuracy": 4.75,
        "peak_memory": 300,
    }


def summary(*pairs):
    usual = dict.fromkeys((key for key, *_ in tables.ROWS), 1.0)
    sides = [{"ours": usual | {"time_to_accuracy": a}, "trl": usual | {"time_to_accuracy": b}} for a, b in pairs]
    return tables.summarise(sides)["time_to_accuracy"]


def test_ratios_are_taken_pair_by_pair_and_a_pair_without_a_time_makes_none():
    # The machine is slow in one pair and fast in another: the ratio of the medians would be 1.
    slow_and_fast = summary((1.0, 2.0), (10.0, 20.0), (2.0, 1.0))
    assert slow_and_fast == {"ours": 2.0, "trl": 2.0, "ratio": 0.5, "ratios": [0.5, 0.5, 2.0]}
    some = summary((None, 2.0), (3.0, 4.0), (3.0, None))
    assert some == {"ours": 3.0, "trl": 3.0, "ratio": 0.75, "ratios": [0.75]}
    assert summary((None, 2.0)) == {"ours": None, "trl": 2.0, "ratio": None, "ratios": []}


# --- the command, with stubs in place of training -------------------------------------------------------------------


@pytest.fixture
def stub(monkeypatch):
    """Replace fresh processes by made-up figures, with a TRL that is twice as slow and slows down; return the calls."""
    specs = []

    def run(measured, spec):
        if measured is measure.phases:
            return dict.fromkeys(("seconds", "flops", "bytes"), dict.fromkeys(tables.PHASES, 1.0)) | {
                "rates": {"flops": 1.0, "bytes": 2.0},
                "processor": "stub",
                "products": "float32",
            }
        specs.append(spec)
        step = len(specs) * (2.0 if spec["trainer"] == "trl" else 1.0)
        return record([step * k for k in range(1, 7)], [1.0] * 6)

    monkeypatch.setattr(command, "in_a_process", run)
    monkeypatch.setattr(command, "find_spec", lambda package: True)
    return specs


def test_runs_alternate_share_all_but_the_trainer_and_are_shown_and_written(stub, tmp_path, capsys):
    folder, file = str(shutil.copytree(TINY, tmp_path / "model")), tmp_path / "report.json"
    options = ["--model", folder, "--precision", "fp32-master", "--steps", "6", "--seeds", "5", "6"]
    assert command.main(["--against", "trl", *options, "--json", str(file)]) == 0
    order = [(spec.pop("seed"), spec.pop("trainer")) for spec in stub]
    assert order == [(5, "ours"), (5, "trl"), (6, "trl"), (6, "ours")]
    setup = {"model": folder, "precision": "fp32-master", "device": "cpu", "steps": 6, "threads": 1}
    report = json.loads(file.read_text(encoding="utf-8"))
    assert stub == [setup] * 4 and report["setup"] == setup and report["machine"]["torch"] == torch.__version__
    steps = report["summary"]["seconds_per_step"]
    assert (steps["ours"], steps["trl"]) == (2.5, 5.0)  # medians of 1 and 4, of 4 and 6
    assert steps["ratios"] == [1 / 4, 4 / 6] and len(report["pairs"][1]["trl"]["history"]["reward"]) == 6
    captured = capsys.readouterr()
    assert captured.out.strip() == tables.phase_table(report["phases"]) + "\n" + tables.table(report)
    assert "seed 6, trl: 6 steps begin" in captured.err and "a step             5.000" in captured.out
    assert command.main([]) == 0 and len(stub) == 4 and "TRL" not in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused(stub, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for option, value, expected in [
        ("--model", str(tmp_path / "none"), "and there is no such folder"),
        ("--precision", "bf16", "argument --precision: invalid choice: 'bf16'"),
        ("--device", "cuda", "--device is 'cuda'; expected None or one of cpu"),
    ]:
        assert expected in refused(command.main, "--against", "trl", option, value)
    monkeypatch.setattr(command, "find_spec", lambda package: None)
    assert "trl is not installed; pip install trl==" in refused(command.main, "--against", "trl")


def test_a_cpu_without_bf16_is_told_so_and_others_are_not(monkeypatch):
    warnings = []
    for capabilities in ({"avx2": True, "avx512_bf16": False}, {"avx2": True, "avx512_bf16": True}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda available=capabilities: available)
        warnings += [slow_here(torch.device("cpu"), PRECISIONS[mode]) for mode in ("fp32-master", "bf16-naive", "fp32")]
    assert [text is not None for text in warnings] == [True, True, False, False, False, False]
    assert warnings[0] == "this CPU has no bf16, so fp32-master is several times slower than fp32"


# --- what is measured -----------------------------------------------------------------------------------------------


def process_facts(spec: dict) -> dict:
    return {"pid": os.getpid(), "threads": torch.get_num_threads(), "tokens": spec["tokens"]}


@pytest.mark.slow
def test_a_measurement_runs_in_its_own_process_and_reports_failure():
    answer = in_a_process(process_facts, {"tokens": 8, "threads": 3})
    assert answer.pop("pid") != os.getpid() and answer == {"tokens": 8, "threads": 3}
    with pytest.raises(KeyError, match="tokens"):
        in_a_process(process_facts, {})


@pytest.fixture(scope="module")
def two_steps():
    """The phases of two steps of the tiny model; with the samples and sums of weights of each count and each timing."""
    drawn, sums, dtypes, collect = [], [], [], measure.collect

    def collected(model, *arguments):
        sums.append(sum(weight.double().sum().item() for weight in model.parameters()))
        experience, metrics = collect(model, *arguments)
        drawn.append(experience.rollout.completion_ids.tolist())
        return experience, metrics

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "collect", collected)
        patch.setattr(measure, "rates", lambda dtype: dtypes.append(dtype) or {"flops": 1e9, "bytes": 2e9})
        began = time.process_time()
        measured = measure.phases({"model": "tiny", "precision": "fp32", "device": "cpu", "seed": 0, "steps": 2})
    return measured, time.process_time() - began, dtypes, drawn, sums


def test_the_phases_of_a_step_add_up_and_its_products_are_those_of_its_tokens(two_steps):
    measured, passed, dtypes, *_ = two_steps
    assert 0 < sum(measured["seconds"].values()) < passed
    products = measured["flops"]
    assert products["backward"] == pytest.approx(2 * products["time/logprobs"], rel=0.01) != 0, "of inputs and weights"
    assert measured["bytes"]["backward"] == 3 * measured["bytes"]["time/logprobs"] > 0 and products["optimizer"] == 0
    assert tables.phase_table(measured).count("\n") == len(tables.PHASES) + 2
    assert {*dtypes} == {torch.float32} and measured["products"] == "float32"
    assert measured["rates"] == {"flops": 1e9, "bytes": 2e9}


def test_a_step_is_counted_and_timed_with_the_same_tokens(two_steps):
    *_, drawn, sums = two_steps
    assert drawn[::2] == drawn[1::2] and drawn[0] != drawn[2], "counted, then timed"
    assert sums[::2] == sums[1::2] and sums[0] != sums[2], "a step that is counted leaves the weights"


IN_PARTS = {
    "num_generations": 4, "generation_batch_size": 8, "max_completion_length": 8, "max_steps": 1, "disable_tqdm": True,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
}  # fmt: skip


def alternating_reward(completions, **_):
    return [float(row % 2) for row in range(len(completions))]


def test_trl_samples_neutrally_with_the_same_ends(tiny):
    trl = pytest.importorskip("grpo_lab.train.engines.trl")
    config = GRPOConfig(**IN_PARTS, precision="fp32")
    inputs = RunInputs(*tiny, TASKS["sums"].rows("train", 8), alternating_reward, config)
    trainer = trl.make_trainer(inputs)
    settings = trainer.generation_config
    assert settings.do_sample and settings.max_new_tokens == config.max_completion_length
    assert (settings.temperature, settings.top_k, settings.top_p) == (1.0, 0, 1.0)
    assert settings.repetition_penalty == 1.0 and settings.min_p is None
    assert sorted(settings.eos_token_id) == end_token_ids(trainer.model, trainer.processing_class)
    assert not trainer.model.is_gradient_checkpointing and trainer.ref_model is None
