"""One measurement, one fresh process: nothing that ran before is in its memory, its caches or its compiled code."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil


def run_worker(module: str, spec: dict) -> dict:
    """Run `python -m module` on the spec, and return what it wrote.

    spec["threads"] is the number of torch threads; without it, or with None, torch chooses.

    Raises:
        RuntimeError: if it ended with an error; the message has the end of what it printed.
    """
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"}
    if (threads := spec.get("threads")) is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", module, json.dumps(spec), str(answer)]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "errors": "replace"}
        done = subprocess.run(command, env=environment, **output)
        if done.returncode == 0 and answer.is_file():
            return json.loads(answer.read_text(encoding="utf-8"))
    raise RuntimeError(f"{module} ended with exit code {done.returncode}:\n{done.stdout[-2000:]}")


def worker_main(measure: Callable[[dict], dict]) -> None:
    """The other side of `run_worker`: read the spec, set the threads, measure, write the answer."""
    spec, answer = json.loads(sys.argv[1]), Path(sys.argv[2])
    if spec.get("threads"):
        import torch

        torch.set_num_threads(spec["threads"])  # the environment alone brings no more than there are cores
    answer.write_text(json.dumps(measure(spec)), encoding="utf-8")


def peak_memory() -> int:
    """The most bytes of main memory that this process held so far."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    status = Path("/proc/self/status")
    if status.is_file():
        # Not getrusage here: on Linux its peak starts from that of the process that started this one.
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
