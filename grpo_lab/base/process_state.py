"""The state of the process in which torch computes: its random numbers, and the memory of tensors that were freed.

By default glibc's memory allocator, which torch uses for tensors on a CPU, requests the memory of each large tensor
from the operating system and returns it when the tensor is freed. The system then clears every page again, which takes
a tenth of the time of a training step of a real model on one core. `keep_freed_memory` keeps freed memory in the
process for later tensors. No computed value changes; the peak memory of the process grew by 7% with SmolLM2, since free
memory between tensors is not returned (docs/bench.md).
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch  # the functions import it themselves, since the commands import base before they print their help

# The seeds of the random streams in a run are SEED_STRIDE times the run's seed, plus the step or the epoch. So a run
# repeats the streams of the run with the next seed only after this number of steps or epochs. The order of the rows in
# epoch e and the sampling of step e have the same seed, and on a CPU therefore draw from the same stream.
SEED_STRIDE = 1_000_003
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # the parameters of `mallopt` in glibc's malloc.h
_BYTES_PER_REQUEST = 64 * 2**20  # requested from the operating system at once
_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


@contextmanager
def restored_random_state(seed: int | None = None) -> Iterator[None]:
    """Restore torch's random state, on the CPU and on all GPUs, after the context.

    seed: Seed for torch inside the context. None: the random numbers go on from the current state.
    """
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        if seed is not None:
            torch.manual_seed(seed)
        yield


def random_state(device: "torch.device") -> "torch.Tensor":
    """Return torch's random state of a GPU, or of the CPU for any other device."""
    import torch

    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(device: "torch.device", state: "torch.Tensor") -> None:
    """Set torch's random state of a GPU, or of the CPU for any other device."""
    import torch

    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory in the process for later tensors; return True if that is set, which needs Linux with glibc.

    If an environment variable sets one of the allocator's parameters, no parameter is changed.
    """
    if not uses_glibc() or is_set_by_environment():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    values = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _TOP_PAD: _BYTES_PER_REQUEST}  # -1: memory is never returned
    return_codes = [mallopt(parameter, value) for parameter, value in values.items()]
    return return_codes == [1] * len(values)


def uses_glibc() -> bool:
    """Return True if the C library of this process is glibc: not on macOS or Windows, nor on Linux with musl."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False


def is_set_by_environment() -> bool:
    """Return True if an environment variable sets what glibc does with freed memory."""
    return any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
