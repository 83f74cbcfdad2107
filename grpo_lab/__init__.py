"""grpo_lab: GRPO in small, tested pieces, written to be read beside the equations that they compute.

The loop stands in `trainer/loop.py`: read it first. README.md shows the tree, and CONTRIBUTING.md says what each part
holds; a part imports from those above it in that table and from none below.

In a shell: `grpo-lab` lists the commands and says what each is for; `grpo-lab train` is `python -m grpo_lab.train`.
"""

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_lab.config import GRPOConfig

__version__ = "1.0.0"


def _leave_out_torchao_notices() -> None:
    """Drop four warnings of torchao, which prints them when transformers imports it.

    They are about kernels for other GPUs (we use its optimizer, which has none of its own) and about enums that it
    registers twice. All other messages of these loggers are kept. It has to happen here, before any of our modules
    imports transformers.
    """
    for name, part in {"torchao": "Failed to load ", "torch.utils._pytree": " is an Enum subclass "}.items():
        logging.getLogger(name).addFilter(lambda record, part=part: part not in record.getMessage())


def __getattr__(name: str) -> Any:
    """Import `GRPOConfig` when it is first used, since that takes a second."""
    if name != "GRPOConfig":
        raise AttributeError(f"module 'grpo_lab' has no attribute {name!r}")
    from grpo_lab.config import GRPOConfig

    return GRPOConfig


_leave_out_torchao_notices()
