"""grpo_lab: GRPO in small, tested pieces, written to be read beside the equations that they compute.

Read the training loop in `trainer/loop.py` first. README.md shows the tree of files. A table in CONTRIBUTING.md says
what each package holds; a package imports only from packages above it in that table.

`import grpo_lab` offers the names in `__all__`, with which a script of your own begins: the pieces of a run, and the
formulas of advantages, log-probabilities, KL and loss. Each is imported from its package at its first use, since these
packages import torch, which takes seconds. The functions `train` and `evaluate` are not among them, since
`grpo_lab.train` and `grpo_lab.evaluate` are the modules of the commands: import them by
`from grpo_lab.trainer import train` and `from grpo_lab.evaluate import evaluate`.

In a shell, `grpo-lab` lists the commands with a line on each; `grpo-lab train` runs `python -m grpo_lab.train`.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_lab.advantages import group_advantages
    from grpo_lab.config import GRPOConfig
    from grpo_lab.kl import kl_estimate
    from grpo_lab.logprobs import token_logprobs
    from grpo_lab.models import load_policy
    from grpo_lab.objective import policy_loss
    from grpo_lab.rewards import score_completions
    from grpo_lab.rollout import sample_completions
    from grpo_lab.tasks import find_task
    from grpo_lab.trainer import Run

__version__ = "1.0.0"
__all__ = [
    "GRPOConfig",
    "Run",
    "find_task",
    "group_advantages",
    "kl_estimate",
    "load_policy",
    "policy_loss",
    "sample_completions",
    "score_completions",
    "token_logprobs",
]

# The package from which each offered name is imported at its first use.
_PACKAGES = {
    "GRPOConfig": "grpo_lab.config",
    "Run": "grpo_lab.trainer",
    "find_task": "grpo_lab.tasks",
    "group_advantages": "grpo_lab.advantages",
    "kl_estimate": "grpo_lab.kl",
    "load_policy": "grpo_lab.models",
    "policy_loss": "grpo_lab.objective",
    "sample_completions": "grpo_lab.rollout",
    "score_completions": "grpo_lab.rewards",
    "token_logprobs": "grpo_lab.logprobs",
}


def _leave_out_torchao_notices() -> None:
    """Drop four warnings of torchao, which prints them when transformers imports it.

    The warnings concern kernels for other GPUs, which this package does not use, and enums that torchao registers
    twice. All other messages of these loggers are kept. The filters are added here since they have to be in place
    before any module of the package imports transformers.
    """
    import logging

    def without(text: str):
        return lambda record: text not in record.getMessage()

    dropped_texts = {"torchao": "Failed to load ", "torch.utils._pytree": " is an Enum subclass "}
    for logger_name, text in dropped_texts.items():
        logging.getLogger(logger_name).addFilter(without(text))


def __getattr__(name: str) -> Any:
    """Return an offered name from its package, which is imported if it is not yet."""
    if name not in _PACKAGES:
        raise AttributeError(f"module 'grpo_lab' has no attribute {name!r}")
    return getattr(import_module(_PACKAGES[name]), name)


def __dir__() -> list[str]:
    """Return the offered names, including those that were not used yet, and the imported modules of the package."""
    modules = {name for name, value in globals().items() if isinstance(value, ModuleType)}
    return sorted({*__all__, "__version__", *modules})


_leave_out_torchao_notices()
