"""The clock of the stations of a step. A card works behind the processor's back, so it is waited for first."""

import time

import torch


def now(device: torch.device) -> float:
    """Seconds on the wall clock, once the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
