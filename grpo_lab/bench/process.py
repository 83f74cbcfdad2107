"""One measurement, one fresh process: nothing that ran before is in its memory, its caches or its compiled code."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


def run_worker(module: str, spec: dict, threads: int | None = None, timeout: float | None = None) -> dict:
    """Run `python -m module` on the spec, with that many threads (None: torch's own choice), and return what it wrote.

    Raises:
        RuntimeError: if the process ended with an error, or not within `timeout` seconds; the message has its exit code
            and the end of what it printed.
    """
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"}
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", module, json.dumps(spec), str(answer)]
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{module} was not done after {timeout:.0f} s and was ended") from error
        if done.returncode != 0 or not answer.is_file():
            raise RuntimeError(f"{module} ended with exit code {done.returncode}:\n{done.stdout[-2000:]}")
        return json.loads(answer.read_text(encoding="utf-8"))


def memory_was_full(error: RuntimeError) -> bool:
    """Whether a worker of `run_worker` ended because it wanted more memory than there is.

    -9 is the operating system's answer to such a process, the words are torch's.
    """
    return any(words in str(error) for words in ("exit code -9", "out of memory", "not enough memory"))


def worker_main(measure, arguments: list[str] | None = None) -> None:
    """The other side of `run_worker`: read the spec, set the threads, measure, write the answer."""
    spec, answer = sys.argv[1:] if arguments is None else arguments
    spec = json.loads(spec)
    if spec.get("threads") is not None:
        import torch

        torch.set_num_threads(spec["threads"])
    Path(answer).write_text(json.dumps(measure(spec)), encoding="utf-8")


class Memory(NamedTuple):
    """Bytes of main memory that this process holds: now, and at most so far."""

    now: int
    peak: int


def memory() -> Memory:
    if sys.platform == "win32":
        return _memory_windows()
    status = Path("/proc/self/status")
    if status.is_file():
        # Not getrusage here: on Linux its peak starts from that of the process that started this one.
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
        return Memory(*(int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")))
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    now = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, encoding="utf-8", check=True
    )
    return Memory(int(now.stdout) * 1024, peak)


def _memory_windows() -> Memory:
    import ctypes
    from ctypes import wintypes

    sizes = ("peak_working_set", "working_set", "a", "b", "c", "d", "pagefile", "peak_pagefile")

    class Counters(ctypes.Structure):
        _fields_ = [("cb", wintypes.DWORD), ("faults", wintypes.DWORD)] + [(name, ctypes.c_size_t) for name in sizes]

    counters = Counters()
    counters.cb = ctypes.sizeof(counters)
    kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel32.GetCurrentProcess.restype = wintypes.HANDLE
    query = kernel32.K32GetProcessMemoryInfo
    query.argtypes = [wintypes.HANDLE, ctypes.POINTER(Counters), wintypes.DWORD]
    if not query(kernel32.GetCurrentProcess(), ctypes.byref(counters), counters.cb):
        raise ctypes.WinError(ctypes.get_last_error())
    return Memory(counters.working_set, counters.peak_working_set)
