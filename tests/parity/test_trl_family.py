"""Each member of the family is a valid TRL configuration, with which TRL's loss and ours have the same value."""

import inspect

import pytest
import torch

from grpo_lab.advantages import group_advantages
from grpo_lab.config import GRPOConfig
from grpo_lab.objective import policy_loss
from tests.parity.engines import VERSIONS as INSTALLED
from tests.parity.engines import require_engine, trl_loss
from tests.support.agreement import assert_agree, draw, draw_batch
from tests.support.loss_family_record import FAMILY, VERSIONS

trl = require_engine("trl")
P, G, T = 3, 4, 7


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def trl_config(settings: dict, tmp_path):
    return trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=8, **settings)


def trl_loss_of_config(config, logp, advantages, mask, old, ref):
    """Return the loss of TRL's trainer with the settings that its `__init__` reads from the configuration."""
    names = ("loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "beta")
    loss_settings = {name: getattr(config, name) for name in (*names, "max_completion_length")}
    return trl_loss(
        logp, advantages, mask, old, ref, kl_bias_correction=config.use_bias_correction_kl, **loss_settings
    )[0]


def test_recorded_trl_version_is_the_installed_one():
    assert VERSIONS["TRL"] == INSTALLED["trl"] == trl.__version__


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("distance", [0.0003, 0.3])
def test_losses_of_the_family_have_trls_value_and_gradient(name, distance, tmp_path):
    """The policy is near the old one, where some answers are within GSPO's narrow range, or far from it."""
    member = FAMILY[name]
    theirs, ours = trl_config(member.trl, tmp_path), GRPOConfig(**member.trl)
    logp, old, ref, _, mask = draw_batch(P * G, T, 3, distance)
    rewards = draw(P, G, seed=9)
    assert ours.scale_rewards == theirs.scale_rewards
    advantages = group_advantages(rewards, scale=theirs.scale_rewards).flatten()
    assert_agree(
        lambda x: policy_loss(x, advantages, mask, old, ref, **ours.loss_arguments())[0],
        lambda x: trl_loss_of_config(theirs, x, advantages, mask, old, ref),
        logp,
    )


def test_loss_name_without_its_settings_is_another_algorithm_in_trl(tmp_path):
    """With the loss type alone the value differs, except for the members whose settings are the defaults."""
    logp, old, ref, _, mask = draw_batch(P * G, T, 3, 0.3)
    rewards, equal_names = draw(P, G, seed=9), set()
    for name, member in FAMILY.items():
        values = []
        for settings in (member.trl, {"loss_type": member.trl["loss_type"], "max_completion_length": 512}):
            config = trl_config(settings, tmp_path)
            advantages = group_advantages(rewards, scale=config.scale_rewards).flatten()
            values.append(trl_loss_of_config(config, logp, advantages, mask, old, ref))
        if torch.isclose(*values, rtol=1e-6):
            equal_names.add(name)
    assert equal_names == {"BNPO", "SAPO", "VESPO"}


def test_vespo_with_vllm_needs_another_mode(tmp_path):
    """TRL's trainer raises for the default mode, which the member does not change, as notebook 05b says."""
    config = trl_config(FAMILY["VESPO"].trl, tmp_path)
    assert config.vllm_importance_sampling_correction and config.vllm_importance_sampling_mode == "sequence_mask"
    assert 'not in ["token_truncate", "token_mask"]' in inspect.getsource(trl.GRPOTrainer.__init__)
