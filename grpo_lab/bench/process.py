"""Run a measurement in a fresh process, so that earlier work does not affect its memory, caches or compiled code."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from grpo_lab.base.checks import InputPackageError

Spec = TypeVar("Spec")
Result = TypeVar("Result")


def run_in_process(measure: Callable[[Spec], Result], spec: Spec, threads: int | None = None) -> Result:
    """Return `measure(spec)`, computed in its own process; an exception there is raised here, with its traceback.

    measure: A function at the top level of a module, which can be pickled.
    spec: The argument of `measure`.
    threads: Number of torch's threads; None leaves it to torch.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), _begin, (threads,)) as pool:
        return pool.submit(measure, spec).result()


def _begin(threads: int | None) -> None:
    sys.stdout = sys.stderr  # stdout is for the tables
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def peak_memory() -> int:
    """Return the peak of the main memory that this process has used so far, in bytes."""
    if sys.platform == "win32":
        try:
            import psutil
        except ImportError as error:
            needs = 'is measured by psutil on Windows, which is not installed: pip install "grpo-lab[bench]"'
            raise InputPackageError("peak memory", problem=needs) from error
        return psutil.Process().memory_info().peak_wset
    status = Path("/proc/self/status")
    if status.is_file():
        # getrusage would be wrong here: on Linux its peak includes that of the parent process.
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
