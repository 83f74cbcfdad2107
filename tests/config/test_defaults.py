"""What a model of some size begins with, and that what is given decides what follows from it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import BY_SIZE, default_settings, described
from grpo_lab.tasks import TASKS

WORDS, SUMS = TASKS["word-problems"], TASKS["sums"]
HALF_A_BILLION = 494_032_768


def config(parameters, device_type="cuda", task=WORDS, **given):
    return GRPOConfig(**(given | default_settings(parameters, task, device_type, given)))


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
def test_each_size_begins_with(parameters, rate, group, batch, rows, checkpointing):
    for device_type, at_once in zip(("cuda", "cpu"), rows, strict=True):
        made = config(parameters, device_type)
        assert (made.learning_rate, made.num_generations, made.generation_batch_size) == (rate, group, batch)
        assert (made.rows_at_once, made.gradient_checkpointing) == (at_once, checkpointing)
        assert made.updates_per_step == 1 and made.max_completion_length == 256


def test_the_tiny_model_begins_with_the_defaults_of_the_configuration_and_lengths_are_the_tasks():
    assert config(459_904, "cpu", SUMS) == GRPOConfig()
    assert default_settings(HALF_A_BILLION, SUMS, "cuda")["max_completion_length"] == 128
    assert default_settings(1000, TASKS["chat"], "cpu")["max_completion_length"] == 48


@pytest.mark.parametrize(("length", "device_type", "rows"), [(129, "cpu", 8), (128, "cpu", 16), (8, "cuda", 16)])
def test_short_completions_go_twice_as_many_at_a_time_where_there_is_no_card(length, device_type, rows):
    assert config(134_515_008, device_type, max_completion_length=length).rows_at_once == rows


@settings(max_examples=15)
@given(st.integers(1, 40), st.integers(2, 12), st.sampled_from([20_000_000, HALF_A_BILLION, 2 * 10**9]))
def test_micro_batches_divide_whatever_batch_is_given(prompts, group, parameters):
    for device_type, most in (("cuda", 16), ("cpu", 8)):
        made = config(parameters, device_type, generation_batch_size=prompts * group, num_generations=group)
        assert made.updates_per_step == 1 and made.rows_at_once <= most


def test_micro_batches_that_are_given_mean_what_they_mean_everywhere():
    for asked in ({"per_device_train_batch_size": 2}, {"gradient_accumulation_steps": 4}):
        chosen = default_settings(HALF_A_BILLION, WORDS, "cuda", asked)
        assert not chosen.keys() & {"per_device_train_batch_size", "gradient_accumulation_steps"}
        made = config(HALF_A_BILLION, **asked)
        assert made.rows_at_once == asked.get("per_device_train_batch_size", 16)


def test_nothing_that_is_given_is_chosen():
    everything = {name: getattr(config(HALF_A_BILLION), name) for name in BY_SIZE}
    assert default_settings(HALF_A_BILLION, WORDS, "cuda", everything) == {}
    assert described({}, HALF_A_BILLION) == "chosen for 494.0 million parameters: nothing; all of it is given"
