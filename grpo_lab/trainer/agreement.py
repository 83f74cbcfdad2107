"""A warning when sampler and scorer no longer agree: what is trained then is not the policy that was sampled."""

import warnings

import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.precision import Precision, short_name
from grpo_lab.trainer.metrics import WORST

# Nats at the worst token of a step. Rules: 1e-4 on a CPU in float32. A card's kernels differ by a few times that; half
# precision rounds a logit of 16 to 1/16 (bf16) or 1/128 (fp16), and thousands of tokens have a worst one.
FLOAT32 = 1e-3
RANGE = {torch.bfloat16: 0.5, torch.float16: 0.1}
TENFOLD = 10


class Agreement:
    """Looks at every step; warns when the difference leaves its range, and again whenever it has grown tenfold."""

    def __init__(self, precision: Precision, config: GRPOConfig):
        self.dtype = precision.autocast or precision.weights
        self.range = self.limit = RANGE.get(self.dtype, FLOAT32)
        asked = (config.top_k, config.top_p, config.repetition_penalty)
        self.comparable = asked == (0, 1, 1)  # else the sampler is another policy because it was asked to be

    def watch(self, step: int, metrics: dict) -> None:
        worst = metrics[WORST]
        if not self.comparable or worst <= self.limit:
            return
        self.limit = worst * TENFOLD
        warnings.warn(
            f"step {step}: sampler and scorer differ by {worst:.2g} nats at one token ({WORST}), where rounding in "
            f"{short_name(self.dtype)} explains {self.range:g}; the gradient is that of another policy than the one "
            "that sampled",
            RuntimeWarning,
            stacklevel=3,
        )
