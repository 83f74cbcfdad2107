"""The training loop: sample, reward, compute advantages and log-probabilities, step."""

import warnings

from grpo_lab.config import GRPOConfig
from grpo_lab.trainer.collecting import collect
from grpo_lab.trainer.experience import Experience
from grpo_lab.trainer.experience_logprobs import completion_logprobs, logprobs_without_gradient
from grpo_lab.trainer.loop import accumulate_gradient, train, update
from grpo_lab.trainer.optim import PolicyOptimizer
from grpo_lab.trainer.run import Run


def __getattr__(name: str):
    """Return `logprobs_without_gradient` for its deprecated name `all_logprobs`."""
    if name != "all_logprobs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("all_logprobs is called logprobs_without_gradient now", DeprecationWarning, stacklevel=2)
    return logprobs_without_gradient
