"""The device of a model and its precision there, and what a process sets for a model on its CPU."""

import contextlib
import os
import platform

import torch
from transformers import PreTrainedModel

from grpo_lab.base.checks import InputError
from grpo_lab.base.display import GIB
from grpo_lab.base.process_state import keep_freed_memory
from grpo_lab.config.defaults import is_tiny


def pick_device(device: str | torch.device | None = None, name: str = "device") -> torch.device:
    """Return the device as a `torch.device` that exists on this machine.

    Args:
        device: The device or its name; None takes an NVIDIA GPU if torch can use one, else the CPU.
        name: The argument's name in the error.

    Raises:
        InputError: if there is no such device.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    with contextlib.suppress(RuntimeError, TypeError):
        chosen = torch.device(device)
        if (chosen.index or 0) < counts.get(chosen.type, 0):
            return chosen
    allowed = ["cpu", *(f"cuda:{index}" for index in range(counts["cuda"]))]
    if counts["mps"]:
        allowed.append("mps")
    advice = "the devices that torch sees (`python -m grpo_lab.doctor` says what keeps it from a GPU)"
    raise InputError(name, device, f"expected None or one of {', '.join(allowed)}: {advice}")


def describe_device(device: str | torch.device | None = None) -> str:
    """Describe a device in one line, such as "NVIDIA H200 (cuda:0), 139.8 GiB" or "CPU (x86_64), 2 torch threads"."""
    chosen = pick_device(device)
    if chosen.type == "cuda":
        gpu = torch.cuda.get_device_properties(chosen)
        index = torch.cuda.current_device() if chosen.index is None else chosen.index
        return f"{gpu.name} (cuda:{index}), {gpu.total_memory / GIB:.1f} GiB"
    if chosen.type == "mps":
        return f"Apple GPU (mps, {platform.machine()})"
    return f"CPU ({platform.machine()}), {torch.get_num_threads()} torch thread{'s' * (torch.get_num_threads() > 1)}"


def one_thread_if_tiny(model: PreTrainedModel) -> None:
    """Limit torch to one thread if the model is tiny and on the CPU, because more threads do not make it faster.

    If the environment variable OMP_NUM_THREADS is set, nothing changes.
    """
    if model.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return
    if is_tiny(model.num_parameters()) and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        print("        one torch thread from here on: a model this small is not faster with more")


def keep_freed_memory_unless_tiny(model: PreTrainedModel) -> None:
    """Let the process keep freed memory (base/process_state.py), if the model is on the CPU and not tiny."""
    if model.device.type == "cpu" and not is_tiny(model.num_parameters()):
        keep_freed_memory()
