"""One measurement, one fresh process: nothing that ran before is in its memory, its caches or its compiled code."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from grpo_lab.base.checks import InputPackageError


def in_a_process(measure: Callable[[dict], dict], spec: dict) -> dict:
    """`measure(spec)` in a process of its own; what goes wrong there is raised here, with its traceback.

    measure: a function of a module.
    spec: "threads" is the number of torch threads; without it, or with None, torch chooses.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), _begin, (spec.get("threads"),)) as pool:
        return pool.submit(measure, spec).result()


def _begin(threads: int | None) -> None:
    sys.stdout = sys.stderr  # stdout is for the tables
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def peak_memory() -> int:
    """The most bytes of main memory that this process held so far."""
    if sys.platform == "win32":
        try:
            import psutil
        except ImportError as error:
            needs = 'is measured by psutil on Windows, which is not installed: pip install "grpo-lab[bench]"'
            raise InputPackageError("peak memory", found=needs) from error
        return psutil.Process().memory_info().peak_wset
    status = Path("/proc/self/status")
    if status.is_file():
        # Not getrusage here: on Linux its peak starts from that of the process that started this one.
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
