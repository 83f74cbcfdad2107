"""Start a script by torchrun, in several processes of one thread each."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def torchrun(*arguments, processes=2, timeout=300, cwd=ROOT, **variables) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables
    command += map(str, arguments)
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)
