"""The settings: their ranges, values derived from them, refused values and their errors."""

import inspect
import math
import re
import sys
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch

from grpo_lab.base import Parser
from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.base.option import check_type, option_specs, union_members
from grpo_lab.command_options import add_options
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.config.defaults import SIZE_DEPENDENT_SETTINGS
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.config.settings import SamplingParams
from grpo_lab.objective import LOSSES, LossSettings, policy_loss
from grpo_lab.train.trl.table import OUR_SETTINGS
from tests.parity.engines import IN_TRL
from tests.support.agreement import draw_batch

OURS_ALONE = {name for name, entry in OUR_SETTINGS.items() if not entry.is_in_trl}


def test_setting_names_are_those_of_trl():
    from trl import GRPOConfig as TRLConfig

    ours, theirs = ({field.name for field in fields(config)} for config in (GRPOConfig, TRLConfig))
    read_there = {name for loss_type in IN_TRL for name in LOSSES[loss_type].reads}
    assert ours - theirs == OURS_ALONE | ({field.name for field in fields(LossSettings)} - read_there)


def test_help_describes_each_setting():
    parser = Parser()
    add_options(parser, SETTINGS.values())
    actions = parser.options_by_name
    for name, spec in SETTINGS.items():
        assert spec.help_text and actions[name].help.startswith(spec.help_text.replace("%", "%%")), name
    assert "lower clip range" in actions["epsilon"].help and "(default: 0.2)" in actions["epsilon"].help
    assert {name for name, spec in SETTINGS.items() if spec.default_text} == {*SIZE_DEPENDENT_SETTINGS}


def test_batch_and_update_sizes_are_derived():
    config = GRPOConfig(num_generations=4, generation_batch_size=48, gradient_accumulation_steps=3, num_iterations=2)
    assert (config.microbatch_size, config.update_batch_size) == (16, 48)
    assert (config.updates_per_step, config.prompts_per_step) == (2, 12)
    config = GRPOConfig(generation_batch_size=48, per_device_train_batch_size=8, gradient_accumulation_steps=2)
    assert (config.update_batch_size, config.updates_per_step, config.prompts_per_step) == (16, 3, 3)
    assert not config.needs_every_row, "a row without advantage matters only with KL or entropy"
    assert GRPOConfig(beta=0.1).needs_every_row and GRPOConfig(entropy_coef=-0.1).needs_every_row


@pytest.mark.parametrize(("every", "due"), [(None, []), (2, [2, 4, 5]), (5, [5]), (9, [5])])
def test_evaluations_are_due_at_their_interval_and_after_the_last_step(every, due):
    config = GRPOConfig(eval_steps=every, max_steps=5)
    assert [step for step in range(1, 6) if config.is_evaluation_due(step)] == due


def test_loss_arguments_are_parameters_of_policy_loss():
    config = GRPOConfig(beta=0.1, use_bias_correction_kl=True, epsilon_high=0.3)
    arguments = config.loss_arguments()
    assert arguments["kl_bias_correction"] is True and arguments["epsilon_high"] == 0.3
    assert arguments.keys() < inspect.signature(policy_loss).parameters.keys()
    of_sapo = GRPOConfig(loss_type="sapo").loss_arguments()
    assert of_sapo["sapo_temperature_neg"] == 1.05 and not {"epsilon", "delta", "vespo_k_pos"} & of_sapo.keys()


def test_sampling_params_are_the_settings_of_the_sampler():
    assert GRPOConfig(num_generations=4, max_completion_length=32).sampling_params() == SamplingParams(4, 32)
    distribution = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2}
    config = GRPOConfig(num_generations=4, max_completion_length=32, **distribution)
    assert config.sampling_params() == SamplingParams(4, 32, **distribution)


def test_wrong_type_of_a_setting_is_named_with_the_allowed_types():
    assert GRPOConfig(delta=np.float64(1.5)).delta == 1.5
    for name, value, allowed in [
        ("max_steps", "150", "int"),
        ("max_steps", True, "int"),
        ("beta", None, "float"),
        ("bf16", 1, "bool"),
        ("output_dir", 3, "str or None"),
        ("reward_weights", 1.0, "list or None"),
    ]:
        with pytest.raises(InputTypeError) as caught:  # called directly, since the test suite checks types before
            check_type(SETTINGS[name], value)
        assert str(caught.value) == f"{name} is {value!r}; expected {allowed}"


def test_precision_and_flags_may_agree_but_not_contradict_each_other():
    with pytest.raises(ValueError, match="bf16 is True; expected at most one of bf16 and fp16"):
        GRPOConfig(bf16=True, fp16=True)
    for flag, names in (("bf16", ["fp32-master", "bf16", "bf16-naive"]), ("fp16", ["fp16"])):
        for name in PRECISIONS:
            if name in names:
                assert GRPOConfig(precision=name, **{flag: True}).precision == name
            else:
                with pytest.raises(ValueError, match=f"{flag} is True; expected False with precision = '{name}'"):
                    GRPOConfig(precision=name, **{flag: True})


NOTHING_READS = [
    *({"advantage": name, "scale_rewards": "batch"} for name in ("rloo", "best_of_group", "none")),
    {"loss_type": "cispo", "epsilon_high": 5.0, "delta": 7.0},
    {"loss_type": "cispo", "epsilon_high": 5.0, "epsilon": 0.1},
    *({"loss_type": name, "epsilon_high": 0.28} for name in ("sapo", "vespo")),
    {"loss_type": "dapo", "sapo_temperature_pos": 2.0},
    {"loss_type": "vespo", "importance_sampling_level": "sequence"},
    *({name: value} for name, value in {"kl_estimator": "k1", "use_bias_correction_kl": True}.items()),
    {"ref_model_device": "cpu"},
    {"log_kl": True, "use_bias_correction_kl": True},
    {"ref_model_sync_steps": 2},
    {"lr_scheduler_type": "constant", "warmup_steps": 3},
    {"save_steps": 5},
    {"report_to": "tensorboard"},
    {"logging_steps": 5},
    {"num_generations_eval": 4},
]  # fmt: skip


def test_a_setting_that_was_given_and_that_nothing_reads_is_refused_by_name():
    for given_settings in NOTHING_READS:
        *_, name = given_settings
        with pytest.raises(InputError, match=f"^{name} is .*; leave it out: nothing reads it with ") as caught:
            GRPOConfig(**given_settings)
        assert caught.value.argument == name and caught.value.value == given_settings[name]


def test_setting_is_accepted_and_reset_together_with_its_reader():
    for given_settings in [
        {"log_kl": True, "kl_estimator": "k1", "ref_model_device": "cpu"},
        {"beta": 0.1, "kl_estimator": "k2", "use_bias_correction_kl": True, "ref_model_sync_steps": 2},
        {"loss_type": "sapo", "importance_sampling_level": "sequence"},
        {"loss_type": "vespo", "importance_sampling_level": "sequence", "beta": 0.1, "use_bias_correction_kl": True},
    ]:
        reset = GRPOConfig(**given_settings).with_changes(beta=0.0, log_kl=False, loss_type="vespo")
        assert reset == GRPOConfig(loss_type="vespo")


def test_a_change_that_nothing_reads_is_refused_and_not_dropped():
    for changes in ({"epsilon": 0.3}, {"epsilon": 0.3, "beta": 0.1}):
        with pytest.raises(InputError, match="^epsilon is 0.3; leave it out: nothing reads it with loss_type = 'sapo'"):
            GRPOConfig(loss_type="sapo").with_changes(**changes)
    assert GRPOConfig(loss_type="sapo").with_changes(epsilon=0.3, loss_type="grpo").epsilon == 0.3


def test_every_loss_setting_is_read_by_some_loss():
    """A setting that no entry names would be an option that changes nothing."""
    assert {field.name for field in fields(LossSettings)} <= {name for loss in LOSSES.values() for name in loss.reads}


@pytest.mark.parametrize("loss_type", LOSSES)
def test_loss_result_depends_on_exactly_the_settings_it_reads(loss_type):
    """Another value of a setting changes the loss or the metrics if the loss reads it, and nothing otherwise."""
    logp, old, _, advantages, mask = draw_batch(40, 12, 3, 1.0)
    usual = {"loss_type": loss_type, "max_completion_length": 9, "epsilon_high": 1.1 if loss_type == "cispo" else 0.25}
    ranges = {name: str(spec.interval) for name, spec in option_specs(LossSettings).items()}
    changed_values = {name: 1.5 if allowed.endswith("inf)") else 0.9 for name, allowed in ranges.items()}
    changed_values |= {"epsilon_high": 0.0, "importance_sampling_level": "sequence"}
    unchanged = policy_loss(logp, advantages, mask, old, **usual)
    for name, value in changed_values.items():
        loss, metrics = policy_loss(logp, advantages, mask, old, **usual | {name: value})
        metrics = {key: metrics[key] for key in metrics if key != "ratio"}
        is_unread = torch.equal(loss, unchanged[0]) and metrics.items() <= unchanged[1].items()
        assert is_unread == (name not in LOSSES[loss_type].reads), name


def test_grpo_config_is_frozen_and_replace_derives_sizes_again():
    config = GRPOConfig()
    with pytest.raises(FrozenInstanceError):
        config.beta = 0.1
    changed = replace(config, generation_batch_size=128)
    assert (changed.microbatch_size, changed.per_device_train_batch_size) == (128, None)
    with pytest.raises(InputError, match="gradient_accumulation_steps is 3; it must divide generation_batch_size ="):
        replace(config, gradient_accumulation_steps=3)


INF = math.inf
# Settings without which some other settings are refused, since nothing would read them.
ENABLING_SETTINGS = {"output_dir": "x", "eval_steps": 5, "beta": 0.1, "log_completions": True}
NUMBERS = {name: spec for name, spec in SETTINGS.items() if {int, float} & set(union_members(spec.type))}
# The declared intervals, and two that are narrower because of the default of another setting.
INTERVALS = {name: str(spec.interval) for name, spec in NUMBERS.items()}
INTERVALS |= {"delta": "(1.2, inf)", "num_generations": "[2, inf)"}
# These also have to divide each other.
SIZES = {"num_generations", "generation_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps",
         "per_device_eval_batch_size"}  # fmt: skip


def is_inside(value, interval):
    low, high = (float(bound) for bound in interval[1:-1].split(", "))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    return above and below and (interval.endswith("inf]") or abs(value) <= sys.float_info.max)


INTEGERS = [0, 1, -1, 2, 2**32 - 1, 2**32, 2**63, 10**400]
FLOATS = [-0.0, 0.999, 1.001, 1.2, 1e-320, 1e308, math.nan, INF, -INF, *map(float, INTEGERS[:-1])]


@pytest.mark.parametrize("name", INTERVALS)
def test_setting_accepts_its_range_and_refuses_other_values_by_name(name):
    loss_type = next((loss_type for loss_type, loss in LOSSES.items() if name in loss.reads), "dapo")
    for value in INTEGERS if int in union_members(NUMBERS[name].type) else FLOATS:
        settings = ENABLING_SETTINGS | {"loss_type": loss_type, name: value}
        if is_inside(value, INTERVALS[name]):
            assert name in SIZES or getattr(GRPOConfig(**settings), name) == value
        else:
            with pytest.raises(ValueError, match=rf"{name} is {re.escape(str(value))}; (it must |.*finite)"):
                GRPOConfig(**settings)


REFUSED = [
    *[("output_dir", name) for name in ("", "  ", __file__)],
    *[(name, "other") for name, spec in SETTINGS.items() if spec.choices],
    ("generation_batch_size", 250),
    ("per_device_train_batch_size", 96),
    ("per_device_eval_batch_size", 24),
    ("gradient_accumulation_steps", 512),
]
TOGETHER = [
    ("output_dir", {"resume_from_checkpoint": True}),
    ("ref_model_sync_steps", {"ref_model_sync_steps": 2, "log_kl": True}),
    ("per_device_eval_batch_size", {"per_device_eval_batch_size": 16, "num_generations_eval": 3}),
    ("delta", {"delta": 1.3, "epsilon_high": 0.3}),
    ("delta", {"delta": 1.0, "loss_type": "cispo", "epsilon_high": 5.0}),
    ("epsilon_high", {"loss_type": "cispo"}),
    ("num_generations", {"num_generations": 1}),
]


def test_wrong_value_of_a_setting_is_named_with_its_range():
    for name, settings in [(name, {name: value}) for name, value in REFUSED] + TOGETHER:
        with pytest.raises(ValueError) as caught:
            GRPOConfig(**settings)
        message = str(caught.value)
        assert name in message and any(words in message for words in ("; expected ", "; it must ", "; leave it out")), (
            settings
        )
