"""The phases of a step add up to the step, which is counted and timed with the same tokens."""

import time
from types import SimpleNamespace

import pytest
import torch

from grpo_lab.base.checks import InputError
from grpo_lab.bench import measure
from grpo_lab.bench.record import PHASE_LABELS, MachineRates, RunResult, RunSpec, Setup, phase_table
from grpo_lab.train.engines import OurEngine
from grpo_lab.train.trl.engine import TrlEngine

RATES = MachineRates(flops=1e9, bytes=2e9)
TWO_STEPS = RunSpec(Setup(model="tiny", precision="fp32", device="cpu", steps=2, threads=None), seed=0)


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
        patch.setattr(measure, "measure_rates", lambda dtype: dtypes.append(dtype) or RATES)
        began = time.process_time()
        phases = measure.measure_phases(TWO_STEPS)
    return phases, time.process_time() - began, dtypes, drawn, sums


@pytest.mark.slow
def test_the_phases_of_a_step_add_up_and_its_products_are_those_of_its_tokens(two_steps):
    phases, passed, dtypes, *_ = two_steps
    assert 0 < sum(phases.seconds.values()) < passed
    products = phases.flops
    assert products["backward"] == pytest.approx(2 * products["time/logprobs"], rel=0.01) != 0, "of inputs and weights"
    assert phases.bytes["backward"] == 3 * phases.bytes["time/logprobs"] > 0
    assert products["optimizer"] == 0
    assert phase_table(phases).count("\n") == len(PHASE_LABELS) + 2
    assert {*dtypes} == {torch.float32}
    assert phases.products == "float32"
    assert phases.rates == RATES


def test_a_step_is_counted_and_timed_with_the_same_tokens(two_steps):
    *_, drawn, sums = two_steps
    assert drawn[::2] == drawn[1::2], "counted, then timed"
    assert drawn[0] != drawn[2]
    assert sums[::2] == sums[1::2], "a step that is counted leaves the weights"
    assert sums[0] != sums[2]


def test_a_model_whose_rewards_never_differ_is_refused(monkeypatch):
    """Such a step has nothing to score, so that no operations are counted for its log-probabilities."""
    without_backward = measure.StepProfile({}, {"time/logprobs": 0.0}, {}, RATES)
    monkeypatch.setattr(measure.StepProfiler, "profile", lambda *_: without_backward)
    with pytest.raises(InputError, match="model is 'tiny', whose completions had equal rewards in all groups of"):
        measure.measure_phases(TWO_STEPS)


@pytest.mark.parametrize(("engine", "kind"), [("ours", OurEngine), ("trl", TrlEngine)])
def test_a_run_is_checked_and_timed_by_its_engine_and_loading_takes_no_time_of_it(engine, kind, monkeypatch):
    now, events = [0.0], []
    inputs = SimpleNamespace(config="settings")
    inputs.check_without_weights = lambda: events.append(("check inputs", inputs))

    def load(spec):
        now[0] += 100
        return inputs

    def run(self, inputs, callback):
        for step in (1, 2):
            now[0] += 3
            callback(step, {})
        events.append(("run", inputs))
        return [{"step_time": 2.0, "reward": 0.5}, {"step_time": 4.0, "reward": 1.0}]

    monkeypatch.setattr(measure, "_run_inputs", load)
    monkeypatch.setattr(measure, "peak_memory", lambda: 7)
    monkeypatch.setattr(measure.time, "process_time", lambda: now[0])
    monkeypatch.setattr(kind, "check", lambda self, config: events.append(("check", config)))
    monkeypatch.setattr(kind, "run", run)
    result = measure.measure_run(RunSpec(TWO_STEPS.setup, seed=0, engine=engine))
    assert events == [("check", "settings"), ("check inputs", inputs), ("run", inputs)], "as in a command"
    assert result == RunResult(seconds=[2.0, 6.0], cpu_seconds=[3.0, 6.0], reward=[0.5, 1.0], peak_memory=7)
