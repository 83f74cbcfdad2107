"""Two ways to start a worker: as a process of its own, and as a fork of one that has loaded everything already."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from grpo_lab.course.grading.sandbox import jail
from grpo_lab.course.grading.sandbox.places import library_folders

START_SECONDS, END_SECONDS = 180.0, 30.0
_FOR_THE_JAIL = ("namespaces", "view", "shown", "hidden", "folder", "environment", "cpu_seconds")
_READY = b"ready"


def python(package: Path | str, statement: str) -> list[str]:
    """The command that runs a statement with the stripped package on the path."""
    code = f"import sys; sys.path[:0] = [{str(package)!r}]; sys.path += {library_folders()!r}; {statement}"
    return [sys.executable, "-I", "-B", "-X", "utf8", "-c", code]


class Process:
    """A worker, or a template, as a process of its own, with a group of its own."""

    def __init__(self, command: list[str], log, **settings):
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, **settings
        )

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    def end(self) -> int:
        """The process and its group. In name spaces, all that it ever started dies with it."""
        try:
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                tree = ["taskkill", "/F", "/T", "/PID", str(self._process.pid)]
                subprocess.run(tree, capture_output=True)
        except (ProcessLookupError, PermissionError):
            pass
        self._process.kill()
        return self._process.wait()


def worker_process(spec_path: Path, environment: dict[str, str], log) -> Process:
    command = [sys.executable, "-I", "-B", jail.__file__, str(spec_path)]
    return Process(command, log, cwd=spec_path.parent, env=environment)


class Template:
    """The parent's side of a process that forks workers."""

    def __init__(self, package: Path, settings: dict, environment: dict[str, str]):
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(0.5)
        self._waiting, self._ready = threading.Lock(), None
        statement = "from grpo_lab.course.grading.sandbox.template import main; "
        statement += f"main({settings!r}, {theirs.fileno()})"
        with theirs:
            settings = {"env": environment, "cwd": "/", "pass_fds": (theirs.fileno(),)}
            self._process = Process(python(package, statement), subprocess.DEVNULL, **settings)

    def wait(self, stopped: Callable[[], bool]) -> bool:
        """Until it has loaded everything; False if that fails."""
        end = time.monotonic() + START_SECONDS
        with self._waiting:
            while self._ready is None and not stopped() and time.monotonic() < end:
                try:
                    self._ready = self._channel.recv(len(_READY)) == _READY
                except TimeoutError:
                    continue
                except OSError:
                    self._ready = False
            return bool(self._ready)

    def start(self, spec: dict, log) -> "Fork":
        """Raises OSError if the template has ended."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = json.dumps({name: spec[name] for name in _FOR_THE_JAIL}).encode()
            socket.send_fds(self._channel, [request], [theirs.fileno(), log.fileno()])
        return Fork(ours)

    def close(self) -> None:
        """It forks nothing more and ends; what was forked goes on."""
        self._channel.close()

    def end(self) -> None:
        self._channel.close()
        self._process.end()


class Fork:
    """A worker that a template has forked, at the other end of a line."""

    def __init__(self, line: socket.socket):
        self._line, self._code = line, None
        line.settimeout(0)

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self._code is None:
            try:
                said = self._line.recv(16)
            except (BlockingIOError, TimeoutError):
                return None
            except ConnectionError:
                said = b""
            self._code = int(said) if said else -signal.SIGKILL
        return self._code

    def end(self) -> int:
        if self._code is None:
            with contextlib.suppress(OSError):  # the other end is gone already
                self._line.shutdown(socket.SHUT_WR)
            self._line.settimeout(END_SECONDS)
            self.poll()
        self._line.close()
        return -signal.SIGKILL if self._code is None else self._code
