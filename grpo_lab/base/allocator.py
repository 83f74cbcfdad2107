"""The C library's allocator, which on a CPU is torch's: what it does with the memory of tensors that are gone.

glibc takes each large tensor's memory from the system and gives it back as soon as the tensor is gone, and the system
clears every page anew: of a step of a real model on one core, a tenth of the time. So on Linux freed memory stays with
the process until it ends, for the tensors to come. No number changes; the most that the process holds grew by 7% with
SmolLM2, since what lies free between tensors is not returned (docs/bench.md).
"""

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # the parameters of `mallopt` in glibc's malloc.h
_BYTES_PER_REQUEST = 64 * 2**20  # bytes
_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


@cache
def keep_freed_memory() -> bool:
    """Let the process keep what it frees, for its next tensors. True where that was done: on Linux with glibc.

    Where one of these parameters is set by an environment variable, all of them are left as they are.
    """
    if not uses_glibc() or is_set_by_environment():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    values = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _TOP_PAD: _BYTES_PER_REQUEST}  # -1: however much is free
    answers = [mallopt(parameter, value) for parameter, value in values.items()]
    return answers == [1] * len(values)


def uses_glibc() -> bool:
    """True if the C library of this process is glibc: not on macOS or Windows, nor on Linux with musl."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False


def is_set_by_environment() -> bool:
    """True if environment variables say what glibc does with freed memory."""
    return any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
