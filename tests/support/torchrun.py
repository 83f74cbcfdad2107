"""Start a script by torchrun, in several processes of one thread each."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def torchrun(*arguments, processes=2, timeout=300, cwd=ROOT, **variables) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables
    command += map(str, arguments)
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)


def end_of_errors(run: subprocess.CompletedProcess, lines=25) -> str:
    """Return the last lines that each process wrote to stderr, and the last ones of torchrun.

    The process that failed first is not the one that wrote last: the others fail after it, as it answers no more. The
    line of an InputError bears no rank, and stands among those of torchrun, of which more are returned.
    """
    written = {}
    for line in run.stderr.splitlines():
        writer = re.match(r"\[rank\d+\]", line)
        written.setdefault(writer[0] if writer else "", []).append(line)
    last_lines = {writer: written[writer][-lines if writer else -120 :] for writer in sorted(written, reverse=True)}
    return "\n".join(line for writer in last_lines for line in last_lines[writer])
