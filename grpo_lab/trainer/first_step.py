"""Check that the first update of a run arrives in the weights, which are compared with those before it."""

from collections.abc import Callable

import torch
from torch import nn


def first_step_test(policy: nn.Module) -> Callable[[int, dict], float | None]:
    r"""A callback for `train`: how far step 1 moves a weight on average, in units of that step's learning rate.

    m = \frac{1}{n \, \eta} \sum_{i=1}^{n} | w_{1,i} - w_{0,i} | \tag{8.8}

    Adam's first step asks for about one learning rate from a weight whose gradient is far above 1e-8, so expect about 1
    where all weights are trained. The sum leaves out the embedding ("embed" in its name): that of SmolLM2 moved by 0.44
    in float32, where the rest moved by 0.996.

    Args:
        policy: the model w_0 before its first step; the callback reads it again, when it is w_1. It may be in bf16:
            subtract and add up in float32.

    Returns:
        A function of (step, metrics). For step 1 it prints and returns m, with \eta = metrics["learning_rate"]; for any
        other it returns None.
    """
    counted = {name: p for name, p in policy.named_parameters() if "embed" not in name}
    initial = {name: p.detach().to("cpu", torch.float32, copy=True) for name, p in counted.items()}
    n = sum(p.numel() for p in counted.values())

    def callback(step: int, metrics: dict) -> float | None:
        if step != 1:
            return None
        moved = sum((p.detach().cpu() - initial[name]).abs().sum().item() for name, p in counted.items())
        m = moved / (n * metrics["learning_rate"])  # scalar (8.8)
        print(f"step 1: a weight moved by {m:.3f} learning rates (expected: about 1)")
        return m

    return callback
