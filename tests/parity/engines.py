"""Import the engines that the parity tests compare with, and call TRL's loss on plain tensors.

TRL changes its formulas between releases, so the version is part of the comparison. The tests of an engine that cannot
be installed (Liger on other systems than Linux) are skipped. On a Linux CI machine a missing engine is a failure.
"""

import importlib
import importlib.metadata
import os
import sys
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from grpo_lab.objective import LOSSES
from grpo_lab.train.trl.table import LOSSES_IN_TRL

IN_TRL = [name for name in LOSSES if name in LOSSES_IN_TRL]
VERSIONS = {"trl": "1.16.0", "liger_kernel": "0.8.5"}


def require_engine(module: str):
    """Import a module of an engine, or skip the calling test module if the engine is not installed."""
    package = module.split(".")[0]
    try:
        installed = importlib.metadata.version(package.replace("_", "-"))
        if installed != VERSIONS[package]:
            raise ImportError(f"{package} is {installed}; the formulas compared here are those of {VERSIONS[package]}")
        return importlib.import_module(module)
    except ImportError as error:
        if os.environ.get("CI") and sys.platform == "linux":
            raise
        pytest.skip(f"parity with {package} not tested: {error}", allow_module_level=True)


def trl_loss(
    logp, advantages, mask, old_logp=None, ref_logp=None, *, loss_type="grpo", importance_sampling_level="token",
    epsilon=0.2, epsilon_high=None, delta=None, beta=0.0, kl_bias_correction=False, max_completion_length=None,
    num_items=None, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, vespo_k_pos=2.0, vespo_lambda_pos=3.0,
    vespo_k_neg=3.0, vespo_lambda_neg=2.0,
):  # fmt: skip
    """Call `_compute_loss` of TRL's GRPOTrainer with log-probabilities instead of a model; return loss and metrics."""
    from trl import GRPOTrainer

    trainer = object.__new__(GRPOTrainer)
    trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: (logp, torch.zeros_like(logp), None)
    trainer.accelerator = SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=lambda x: x,
        reduce=lambda x, reduction="sum": x,
        pad_across_processes=lambda x, **kwargs: x,
    )
    trainer.model = SimpleNamespace(training=True)
    trainer.args = SimpleNamespace(
        delta=delta, use_bias_correction_kl=kl_bias_correction, entropy_target=0.0, steps_per_generation=1,
        sapo_temperature_pos=sapo_temperature_pos, sapo_temperature_neg=sapo_temperature_neg, vespo_k_pos=vespo_k_pos,
        vespo_lambda_pos=vespo_lambda_pos, vespo_k_neg=vespo_k_neg, vespo_lambda_neg=vespo_lambda_neg,
    )  # fmt: skip
    vars(trainer).update(
        loss_type=loss_type, importance_sampling_level=importance_sampling_level, beta=beta, epsilon_low=epsilon,
        epsilon_high=epsilon if epsilon_high is None else epsilon_high, max_completion_length=max_completion_length,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, current_gradient_accumulation_steps=1,
        use_vllm=False, vllm_importance_sampling_correction=False, aux_loss_enabled=False,
        _entropy_bonus_enabled=False, use_adaptive_entropy=False, _metrics={"train": defaultdict(list)},
    )  # fmt: skip
    prompt = torch.zeros(len(logp), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": torch.zeros_like(mask, dtype=torch.long),
        "completion_mask": mask.long(),
        "advantages": advantages,
        "num_items_in_batch": mask.sum() if num_items is None else torch.as_tensor(num_items),
        "ref_per_token_logps": ref_logp,
        "old_per_token_logps": old_logp,
    }
    loss = trainer._compute_loss(None, inputs)
    return loss, {name: values[-1] for name, values in trainer._metrics["train"].items()}
