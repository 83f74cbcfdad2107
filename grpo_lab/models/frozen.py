"""What a model must not do beside the policy: move when it is the reference, or drop units."""

import copy

import torch


def frozen_copy(model: torch.nn.Module) -> torch.nn.Module:
    """The model as it is now, for good: parameters of its own that take no gradient, and evaluation mode.

    The reference of the KL term has to stay behind while the policy moves. A second name for the same model, or a copy
    that shares its tensors, would move along, and the KL would be zero for ever. The model itself is left as it was.
    """
    return copy.deepcopy(model).requires_grad_(False).eval()


def silence_dropout(model: torch.nn.Module) -> None:
    """Switch dropout off, even in training mode: the sampler and the log-probabilities have to be one function.

    In place and for good: the modules `torch.nn.Dropout`, and the probabilities that transformers' layers keep as
    numbers, such as `attention_dropout`, `layerdrop` and `jitter_noise`. Evaluation mode would not be enough: gradient
    checkpointing, for one, needs training mode.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # [dropout]
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or name in ("jitter_noise", "input_jitter_noise")):
                setattr(module, name, 0.0)
