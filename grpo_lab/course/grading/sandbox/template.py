"""A process that has loaded everything once, and forks for each notebook. Linux only.

It runs no code of a student and reads nothing that one wrote: what comes to it is the parent's, over a socket. A fork
goes behind the outer wall by itself, forks again, and its child, which becomes the worker, closes the inner walls.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile

from grpo_lab.course.grading.sandbox import jail, worker

READY = b"ready"
MAX_REQUEST = 2**20


def main(settings: dict, control: int) -> None:
    """Load, say so, and serve until the other side closes the socket."""
    loaded = worker.load(settings)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("what was loaded has started threads, and a process with threads cannot be forked")
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    channel = socket.socket(fileno=control)
    channel.send(READY)
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST, 2)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            _serve(json.loads(request), channel, *descriptors, loaded)
        for descriptor in descriptors:
            os.close(descriptor)


def _serve(spec: dict, channel: socket.socket, line: int, log: int, loaded: tuple[dict, dict]) -> None:
    """One worker, from start to end; its exit code goes over the line. Hanging up ends it. Never returns."""
    try:
        channel.close()
        os.setsid()
        os.dup2(log, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        jail.set_limits(spec["cpu_seconds"])
        code = jail.launch(spec, lambda: _work(spec, loaded), lambda: bool(select.select([line], [], [], 0)[0]))
        os.write(line, str(code).encode())
    except BaseException as error:
        print(f"template: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


def _work(spec: dict, loaded: tuple[dict, dict]) -> None:
    os.environ.clear()
    os.environ.update(spec["environment"])
    tempfile.tempdir = None  # to be looked up anew
    worker.work(worker.read_spec(f"{spec['folder']}/spec.json"), *loaded)
