"""What a record of measurements contains beside them, the machine, and the file that it is written to."""

import json
import platform
from pathlib import Path

from grpo_lab.base.files import write_atomically
from grpo_lab.base.parser import installed_version


def write_json(file: Path, report: dict) -> None:
    """Write the report as JSON; an interrupted write leaves no partial file."""
    write_atomically(file, json.dumps(report, indent=1) + "\n")


def describe_machine(device: str = "cpu") -> dict:
    """Return the machine and the versions of the packages with which the benchmark runs."""
    import torch
    import transformers

    return {
        "platform": platform.platform(terse=True),
        "processor": platform.machine(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    } | {name: installed_version(name) for name in ("trl", "liger-kernel", "torchao")}
