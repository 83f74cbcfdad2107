"""The settings: what is derived from them, what is refused and how."""

import inspect
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch

from grpo_lab.commands.checks import InputError, InputTypeError
from grpo_lab.commands.setting import check_type
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.objective import LOSSES, LossSettings, policy_loss
from tests.support.agreement import batch

OURS_ALONE = {"advantage", "precision", "ref_model_device", "max_nonfinite_steps", "kl_estimator", "log_kl", "command"}


def test_the_names_are_those_of_trl():
    from trl import GRPOConfig as TRLConfig

    ours, theirs = ({field.name for field in fields(config)} for config in (GRPOConfig, TRLConfig))
    assert ours - theirs == OURS_ALONE


def test_sizes_are_derived():
    config = GRPOConfig(num_generations=4, generation_batch_size=48, gradient_accumulation_steps=3, num_iterations=2)
    assert (config.rows_at_once, config.update_batch_size) == (16, 48)
    assert (config.updates_per_step, config.prompts_per_step) == (2, 12)
    config = GRPOConfig(generation_batch_size=48, per_device_train_batch_size=8, gradient_accumulation_steps=2)
    assert (config.update_batch_size, config.updates_per_step, config.prompts_per_step) == (16, 3, 3)
    assert not config.needs_every_row, "a row without advantage matters only with KL or entropy"
    assert GRPOConfig(beta=0.1).needs_every_row and GRPOConfig(entropy_coef=-0.1).needs_every_row


def test_the_arguments_of_the_loss_are_arguments_of_the_loss():
    config = GRPOConfig(beta=0.1, use_bias_correction_kl=True, epsilon_high=0.3)
    arguments = config.loss_arguments()
    assert arguments["kl_bias_correction"] is True and arguments["epsilon_high"] == 0.3
    assert arguments.keys() < inspect.signature(policy_loss).parameters.keys()
    of_sapo = GRPOConfig(loss_type="sapo").loss_arguments()
    assert of_sapo["sapo_temperature_neg"] == 1.05 and not {"epsilon", "delta", "vespo_k_pos"} & of_sapo.keys()
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    assert config.sampling_arguments() == neutral


def test_a_wrong_type_is_named_with_what_is_allowed():
    assert GRPOConfig(delta=np.float64(1.5)).delta == 1.5
    for name, value, allowed in [
        ("max_steps", "150", "int"),
        ("max_steps", True, "int"),
        ("beta", None, "float"),
        ("bf16", 1, "bool"),
        ("output_dir", 3, "str or None"),
        ("reward_weights", 1.0, "list or None"),
    ]:
        with pytest.raises(InputTypeError) as caught:  # past the run-time checks of the test suite, which users lack
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
    {"output_dir": "x", "load_best_model_at_end": True},
]  # fmt: skip


@pytest.mark.parametrize("given", NOTHING_READS, ids=str)
def test_a_setting_that_was_given_and_that_nothing_reads_is_refused_by_name(given):
    *_, name = given
    with pytest.raises(InputError, match=f"^{name} is .*; expected .*, where nothing reads it$") as caught:
        GRPOConfig(**given)
    assert caught.value.argument == name and caught.value.value == given[name]


@pytest.mark.parametrize(
    "given",
    [
        {"log_kl": True, "kl_estimator": "k1", "ref_model_device": "cpu"},
        {"beta": 0.1, "kl_estimator": "k2", "use_bias_correction_kl": True, "ref_model_sync_steps": 2},
        {"loss_type": "sapo", "importance_sampling_level": "sequence"},
        {"loss_type": "vespo", "importance_sampling_level": "sequence", "beta": 0.1, "use_bias_correction_kl": True},
    ],
    ids=str,
)
def test_what_something_reads_is_taken_and_reset_with_what_read_it(given):
    assert GRPOConfig(**given).without(beta=0.0, log_kl=False, loss_type="vespo") == GRPOConfig(loss_type="vespo")


@pytest.mark.parametrize("loss_type", LOSSES)
def test_what_a_loss_reads_is_what_its_result_depends_on(loss_type):
    """Another value of a setting that it reads changes loss or metrics; of one that it does not read, nothing."""
    logp, old, _, advantages, mask = batch(40, 12, 3, 1.0)
    usual = {"loss_type": loss_type, "max_completion_length": 9, "epsilon_high": 1.1 if loss_type == "cispo" else 0.25}
    others = dict.fromkeys(LossSettings.__dataclass_fields__, 1.5) | {"epsilon": 0.9, "epsilon_high": 0.0}
    others["importance_sampling_level"] = "sequence"
    before = policy_loss(logp, advantages, mask, old, **usual)
    for name, value in others.items():
        loss, metrics = policy_loss(logp, advantages, mask, old, **usual | {name: value})
        metrics = {key: metrics[key] for key in metrics if key != "ratio"}
        same = torch.equal(loss, before[0]) and metrics.items() <= before[1].items()
        assert same == (name not in LOSSES[loss_type].reads), name


def test_it_is_frozen_and_made_anew_with_changes():
    config = GRPOConfig(command={"model": "tiny"})
    with pytest.raises(FrozenInstanceError):
        config.beta = 0.1
    changed = replace(config, generation_batch_size=128)
    assert (changed.rows_at_once, changed.per_device_train_batch_size) == (128, None)
    assert changed.command == {"model": "tiny"}
    assert changed.saved()["model"] == "tiny" and "command" not in changed.saved()
    with pytest.raises(InputError, match="gradient_accumulation_steps is 3; it must divide generation_batch_size ="):
        replace(config, gradient_accumulation_steps=3)
