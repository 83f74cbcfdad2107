"""Keeping a model fixed: a frozen copy, as the reference of the KL term; and a model without dropout."""

import copy

import torch


def frozen_copy(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of the model with its own parameters, which require no gradient, in evaluation mode.

    The reference of the KL term must not change while the policy is trained. A second name for the same model, or a
    copy that shares its tensors, would change with the policy, and the KL would always be zero. The model itself is not
    changed.
    """
    return copy.deepcopy(model).requires_grad_(False).eval()


def disable_dropout(model: torch.nn.Module) -> None:
    """Switch dropout off permanently, in place, so that sampler and trainer compute the same log-probabilities.

    This covers the modules `torch.nn.Dropout`, and the probabilities that transformers' layers store as numbers, such
    as `attention_dropout`, `layerdrop` and `jitter_noise`. Evaluation mode would not be enough, because gradient
    checkpointing needs training mode.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # [dropout]
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or name in ("jitter_noise", "input_jitter_noise")):
                setattr(module, name, 0.0)
