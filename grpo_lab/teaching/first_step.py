"""Check that the first update of a run changes the weights: compare them with the weights before it."""

from collections.abc import Callable

import torch
from torch import nn


def first_step_movement(policy: nn.Module) -> Callable[[int, dict], float | None]:
    r"""Return a callback for `train` that measures how far step 1 moves a weight on average, in learning rates.

    m = \frac{1}{n \, \eta} \sum_{i=1}^{n} | w_{1,i} - w_{0,i} | \tag{8.8}

    Adam's first step moves a weight by about one learning rate if its gradient is far above 1e-8. So m is about 1 if
    all weights are trained. The sum leaves out the embedding (parameters with "embed" in their name): in a run of
    SmolLM2 in float32 its weights moved by 0.44 learning rates, and all others by 0.996.

    Args:
        policy: The model, with the weights w_0 before its first step. The callback reads its weights again as w_1. They
            may be in bf16, and are subtracted and summed in float32.

    Returns:
        A function of (step, metrics). For step 1 it prints and returns m, with \eta = metrics["learning_rate"]. For any
        other step it returns None.
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
