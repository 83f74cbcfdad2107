"""The settings: what is derived from them, what is refused and how."""

import inspect
from dataclasses import fields

import numpy as np
import pytest

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.config.ranges import check_types
from grpo_lab.objective import policy_loss

OURS_ALONE = {"advantage", "precision", "ref_model_device", "max_nonfinite_steps", "kl_estimator", "log_kl"}


def test_the_names_are_those_of_trl():
    from trl import GRPOConfig as TRLConfig

    ours, theirs = ({field.name for field in fields(config)} for config in (GRPOConfig, TRLConfig))
    assert ours - theirs == OURS_ALONE


def test_sizes_are_derived():
    config = GRPOConfig(num_generations=4, generation_batch_size=48, gradient_accumulation_steps=3, num_iterations=2)
    assert (config.per_device_train_batch_size, config.update_batch_size) == (16, 48)
    assert (config.updates_per_step, config.prompts_per_step) == (2, 12)
    config = GRPOConfig(generation_batch_size=48, per_device_train_batch_size=8, gradient_accumulation_steps=2)
    assert (config.update_batch_size, config.updates_per_step, config.prompts_per_step) == (16, 3, 3)
    assert not config.needs_every_row, "a row without advantage matters only with KL or entropy"
    assert GRPOConfig(beta=0.1).needs_every_row and GRPOConfig(entropy_coef=-0.1).needs_every_row


def test_the_arguments_of_the_loss_are_arguments_of_the_loss():
    config = GRPOConfig(use_bias_correction_kl=True, epsilon_high=0.3)
    arguments = config.loss_arguments()
    assert arguments["kl_bias_correction"] is True and arguments["epsilon_high"] == 0.3
    assert arguments.keys() < inspect.signature(policy_loss).parameters.keys()
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
        config = GRPOConfig()
        setattr(config, name, value)  # past the run-time checks of the test suite, which users do not have
        with pytest.raises(TypeError) as caught:
            check_types(config)
        assert str(caught.value) == f"{name} is {value!r}; expected {allowed}"


def test_precision_and_flags_may_agree_but_not_contradict_each_other():
    with pytest.raises(ValueError, match="bf16 and fp16 are both True"):
        GRPOConfig(bf16=True, fp16=True)
    for flag, names in (("bf16", ["fp32-master", "bf16", "bf16-naive"]), ("fp16", ["fp16"])):
        for name in PRECISIONS:
            if name in names:
                assert GRPOConfig(precision=name, **{flag: True}).precision == name
            else:
                with pytest.raises(ValueError, match=f"{flag} is True; expected False with precision = '{name}'"):
                    GRPOConfig(precision=name, **{flag: True})
