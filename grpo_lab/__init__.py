"""grpo_lab: GRPO in small, tested pieces, written to be read beside the equations that they compute.

Read the training loop in `trainer/loop.py` first. README.md shows the tree of files. A table in CONTRIBUTING.md says
what each package holds; a package imports only from packages above it in that table.

In a shell, `grpo-lab` lists the commands with a line on each; `grpo-lab train` runs `python -m grpo_lab.train`.
"""

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_lab.config import GRPOConfig

__version__ = "1.0.0"


def _leave_out_torchao_notices() -> None:
    """Drop four warnings of torchao, which prints them when transformers imports it.

    The warnings concern kernels for other GPUs, which this package does not use, and enums that torchao registers
    twice. All other messages of these loggers are kept. The filters are added here since they have to be in place
    before any module of the package imports transformers.
    """
    dropped_texts = {"torchao": "Failed to load ", "torch.utils._pytree": " is an Enum subclass "}
    for logger_name, text in dropped_texts.items():
        logging.getLogger(logger_name).addFilter(lambda record, text=text: text not in record.getMessage())


def __getattr__(name: str) -> Any:
    """Import `GRPOConfig` on first use, since the import takes a second."""
    if name != "GRPOConfig":
        raise AttributeError(f"module 'grpo_lab' has no attribute {name!r}")
    from grpo_lab.config import GRPOConfig

    return GRPOConfig


_leave_out_torchao_notices()
