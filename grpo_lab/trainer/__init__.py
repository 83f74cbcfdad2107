"""The loop: sample, reward, compare, score, step."""

from grpo_lab.config.settings import GRPOConfig
from grpo_lab.trainer.loop import accumulate_gradient, collect, train, update
from grpo_lab.trainer.run import Run

__all__ = [
    "GRPOConfig",
    "Run",
    "accumulate_gradient",
    "collect",
    "train",
    "update",
]
