"""The defaults that depend on the size of the model, the task and the device."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import SIZE_DEPENDENT_SETTINGS, default_settings, describe_defaults
from grpo_lab.tasks import TASKS

WORDS, SUMS = TASKS["word-problems"], TASKS["sums"]
HALF_A_BILLION = 494_032_768


def default_config(parameters, device_type="cuda", task=WORDS, **typed):
    return GRPOConfig(**(typed | default_settings(parameters, task, device_type, typed)))


@pytest.mark.parametrize(
    ("parameters", "rate", "group", "batch", "rows", "checkpointing"),
    [
        (459_904, 2e-4, 16, 256, (256, 256), False),
        (134_515_008, 1e-5, 8, 64, (16, 8), False),
        (HALF_A_BILLION, 2e-6, 8, 64, (8, 4), True),
        (1_543_714_304, 1e-6, 8, 64, (4, 2), True),
        (70_000_000_000, 1e-6, 8, 64, (4, 2), True),
    ],
)
def test_default_settings_by_model_size(parameters, rate, group, batch, rows, checkpointing):
    for device_type, at_once in zip(("cuda", "cpu"), rows, strict=True):
        config = default_config(parameters, device_type)
        assert (config.learning_rate, config.num_generations, config.generation_batch_size) == (rate, group, batch)
        assert (config.microbatch_size, config.gradient_checkpointing) == (at_once, checkpointing)
        assert config.updates_per_step == 1 and config.max_completion_length == 256


def test_tiny_model_defaults_are_those_of_config_and_task():
    assert default_config(459_904, "cpu", SUMS) == GRPOConfig()
    assert default_settings(HALF_A_BILLION, SUMS, "cuda")["max_completion_length"] == 128
    assert default_settings(1000, TASKS["chat"], "cpu")["max_completion_length"] == 48


@pytest.mark.parametrize(("length", "device_type", "rows"), [(129, "cpu", 8), (128, "cpu", 16), (8, "cuda", 16)])
def test_short_completions_double_the_micro_batch_without_a_gpu(length, device_type, rows):
    assert default_config(134_515_008, device_type, max_completion_length=length).microbatch_size == rows


@settings(max_examples=15)
@given(st.integers(1, 40), st.integers(2, 12), st.sampled_from([20_000_000, HALF_A_BILLION, 2 * 10**9]))
def test_default_micro_batch_divides_any_typed_batch(prompts, group, parameters):
    for device_type, most in (("cuda", 16), ("cpu", 8)):
        config = default_config(parameters, device_type, generation_batch_size=prompts * group, num_generations=group)
        assert config.updates_per_step == 1 and config.microbatch_size <= most


def test_default_settings_leave_explicit_settings_alone():
    everything = {name: getattr(default_config(HALF_A_BILLION), name) for name in SIZE_DEPENDENT_SETTINGS}
    assert default_settings(HALF_A_BILLION, WORDS, "cuda", everything) == {}
    assert describe_defaults({}, HALF_A_BILLION) == "chosen for 494.0 million parameters: nothing; all of it is given"
