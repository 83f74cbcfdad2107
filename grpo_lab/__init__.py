"""grpo_lab: GRPO in small, tested pieces, written to be read beside the equations that they compute."""

import logging

__version__ = "0.1.0"


def _leave_out_torchao_notices() -> None:
    """torchao speaks at its import, and transformers imports it wherever it is installed: four lines on any page.

    They are about kernels for other cards (we use its optimizer, which has none of its own) and about enums that it
    registers twice. Nothing else that these loggers say is held back.
    """
    for name, part in {"torchao": "Failed to load ", "torch.utils._pytree": " is an Enum subclass "}.items():
        logging.getLogger(name).addFilter(lambda record, part=part: part not in record.getMessage())


_leave_out_torchao_notices()
