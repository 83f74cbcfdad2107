"""The phases of a step add up to the step, which is counted and timed with the same tokens."""

import time

import pytest
import torch

from grpo_lab.base.checks import InputError
from grpo_lab.bench import measure, tables


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
        patch.setattr(measure, "measure_rates", lambda dtype: dtypes.append(dtype) or {"flops": 1e9, "bytes": 2e9})
        began = time.process_time()
        measured = measure.measure_phases(
            {"model": "tiny", "precision": "fp32", "device": "cpu", "seed": 0, "steps": 2}
        )
    return measured, time.process_time() - began, dtypes, drawn, sums


def test_the_phases_of_a_step_add_up_and_its_products_are_those_of_its_tokens(two_steps):
    measured, passed, dtypes, *_ = two_steps
    assert 0 < sum(measured["seconds"].values()) < passed
    products = measured["flops"]
    assert products["backward"] == pytest.approx(2 * products["time/logprobs"], rel=0.01) != 0, "of inputs and weights"
    assert measured["bytes"]["backward"] == 3 * measured["bytes"]["time/logprobs"] > 0
    assert products["optimizer"] == 0
    assert tables.phase_table(measured).count("\n") == len(tables.PHASE_LABELS) + 2
    assert {*dtypes} == {torch.float32}
    assert measured["products"] == "float32"
    assert measured["rates"] == {"flops": 1e9, "bytes": 2e9}


def test_a_step_is_counted_and_timed_with_the_same_tokens(two_steps):
    *_, drawn, sums = two_steps
    assert drawn[::2] == drawn[1::2], "counted, then timed"
    assert drawn[0] != drawn[2]
    assert sums[::2] == sums[1::2], "a step that is counted leaves the weights"
    assert sums[0] != sums[2]


def test_a_model_whose_rewards_never_differ_is_refused(monkeypatch):
    """Such a step has nothing to score, so that no operations are counted for its log-probabilities."""
    equal = measure.StepValues({}, {"time/logprobs": 0.0}, {}, {})
    monkeypatch.setattr(measure.MeasuredRun, "measure", lambda *_: equal)
    with pytest.raises(InputError, match="model is 'tiny', whose completions had equal rewards in all groups of"):
        measure.measure_phases({"model": "tiny", "precision": "fp32", "device": "cpu", "seed": 0, "steps": 2})
