"""Run a model's Python program in a sandbox that has no network and no home folder.

The CPU time, the wall-clock time (four times the CPU time), the memory, the number of processes, the size of files and
the size of the output are limited. On a machine without a sandbox (see isolation.py) no program is run.
"""

import functools
import inspect
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_lab.base.checks import RunError, check_positive
from grpo_lab.sandbox import bootstrap
from grpo_lab.sandbox.isolation import (
    available_sandbox,
    container_kill_command,
    count_tasks,
    end_worker,
    isolated_command,
    measure_memory,
    private_folders,
)

MAX_CPU_SECONDS = 5.0
CLOCK_FACTOR = 4.0  # the limit of wall-clock time is this many times the limit of CPU time
MAX_MEMORY = 2**31  # bytes that a process may use in addition to what it uses at its start
MAX_TOTAL_MEMORY = 2**31  # bytes that all processes of the program may use together
MAX_FILE_BYTES, MAX_OPEN_FILES, MAX_TASKS = 16_000_000, 64, 50
MAX_OUTPUT_BYTES = 1_000_000  # a program that prints more is stopped
MAX_SHOWN_CHARACTERS = 2000  # length of the part of the output that a model gets to read
POLL_SECONDS = 0.05  # time between two checks of a running program
TOO_MUCH_CPU = "it used more than {:g} seconds of CPU time"
TOO_LONG = "it took longer than {:g} seconds"
OUT_OF_TIME = 128 + 24  # exit code after SIGXCPU, the signal at the limit of CPU time
KILLED = 128 + 9  # exit code after SIGKILL, which follows if the program ignores SIGXCPU
PYTHON_TOOL = "python"  # name of the tool `run_python` on the command line
NO_SANDBOX = (
    "what a model writes is run in a sandbox only, and there is none on this machine ({}). Install bubblewrap (Linux: "
    "apt install bubblewrap, or dnf install bubblewrap) or build the image of the Dockerfile"
)


@dataclass(frozen=True)
class Execution:
    """The outcome of a program that was run in the sandbox."""

    output: str  # text that the program printed, up to `MAX_OUTPUT_BYTES` bytes
    error: str  # last line that the program wrote to stderr
    exit_code: int  # 0 if the program ended without an error
    # The reason why the sandbox stopped the program, such as "it took longer than 20 seconds"; "" if it did not.
    stop_reason: str

    @property
    def succeeded(self) -> bool:
        """True if the program ended by itself and without an error."""
        return self.exit_code == 0 and not self.stop_reason


def needs_sandbox(function: Callable) -> Callable:
    """Mark a function that needs the sandbox, so that `check_sandbox` refuses it on a machine without one."""
    function.__dict__["needs_sandbox"] = True
    return function


def check_sandbox(argument: str, function: Callable) -> None:
    """Raise RunError if a function needs the sandbox and this machine has none.

    argument: The name of the argument whose value is the function, for the message.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not getattr(function, "needs_sandbox", False):
        return
    sandbox, why_missing = machine_sandbox()
    if not sandbox:
        name = getattr(function, "__name__", "a function")
        raise RunError(argument, function, NO_SANDBOX.format(why_missing), problem=f"has {name!r}")


@functools.cache
def machine_sandbox() -> tuple[str, str]:
    """Return what `available_sandbox` returns; only the first call examines the machine."""
    return available_sandbox()


def execute(code: str, stdin: str = "", tests: str | None = None, seconds: float = MAX_CPU_SECONDS) -> Execution:
    """Run a Python program in the sandbox.

    Args:
        code: The program, which can import the standard library and the installed packages.
        stdin: The text that the program can read from stdin.
        tests: A second program, such as assert statements, that runs after the first one and sees its names; None runs
            no tests. With tests, the program cannot read `stdin`. A program that exits before its tests fails. The
            tests run in the same process, so a program can cheat in other ways.
        seconds: Limit of CPU time. The limit of wall-clock time is four times as long.

    Raises:
        RunError: if this machine has no sandbox.
    """
    check_positive("seconds", seconds)
    sandbox, why_missing = machine_sandbox()
    if not sandbox:
        raise RunError("sandbox", problem=f"is missing: {NO_SANDBOX.format(why_missing)}")
    name, token = f"grpo-lab-{uuid.uuid4().hex}", uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="grpo-lab-program-", ignore_cleanup_errors=True) as folder_name:
        folder = Path(folder_name).resolve()
        folder.chmod(0o755)  # readable for the user "nobody", under which a container runs
        files = {"program.py": code, "stdin": stdin} | ({} if tests is None else {"tests.py": tests})
        for file_name, text in files.items():
            (folder / file_name).write_bytes(text.encode("utf-8", "replace"))
        if tests is not None:
            (folder / "stdin").write_text(f"{token}\n", encoding="ascii")
        command, settings = isolated_command(
            sandbox, name, folder, _bootstrap_code(seconds), folder, private_folders(), ("-s",)
        )
        with open(folder / "stdin", "rb") as stdin_file:
            (folder / "stdin").unlink()  # the program must not be able to open this file, which may hold the token
            process = subprocess.Popen(
                command,
                stdin=stdin_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                **settings,
            )
            start = time.monotonic()
        output, error, stop_reason = _watch(process, container_kill_command(sandbox, name), seconds)
    if process.returncode == OUT_OF_TIME or (process.returncode == KILLED and time.monotonic() - start > seconds):
        stop_reason = stop_reason or TOO_MUCH_CPU.format(seconds)
    exit_code, ending = process.returncode, f"{token}\n"
    if tests is not None and exit_code == 0 and not output.endswith(ending):
        exit_code = 1  # the program ended before the tests had passed
    last_error_line = (error.strip().splitlines() or [""])[-1]
    return Execution(output.removesuffix(ending), last_error_line, exit_code, stop_reason)


def _bootstrap_code(seconds: float) -> str:
    """Return the code with which Python starts in the sandbox; the limit of CPU time is in whole seconds."""
    limits = (max(1, round(seconds)), MAX_MEMORY, MAX_FILE_BYTES, MAX_OPEN_FILES)
    return f"{inspect.getsource(bootstrap)}\nrun(*{limits})"


def _watch(process: subprocess.Popen, kill_command: list[str], seconds: float) -> tuple[str, str, str]:
    """Wait until a process ends, or end it when it exceeds a limit.

    Returns:
        The output to stdout, the output to stderr, and the reason why the process was ended ("" if it ended itself).
    """
    readers = [_StreamReader(process.stdout), _StreamReader(process.stderr)]
    deadline, stop_reason = time.monotonic() + CLOCK_FACTOR * seconds, ""
    try:
        while not stop_reason:
            if readers[0].ended_within_poll() and readers[1].ended_within_poll() and process.poll() is not None:
                break
            if any(reader.is_full for reader in readers):
                stop_reason = f"it printed more than {MAX_OUTPUT_BYTES:,} bytes"
            elif time.monotonic() > deadline:
                stop_reason = TOO_LONG.format(CLOCK_FACTOR * seconds)
            elif count_tasks(process.pid) > MAX_TASKS:
                stop_reason = f"it started more than {MAX_TASKS} processes or threads"
            elif measure_memory(process.pid) > MAX_TOTAL_MEMORY:
                stop_reason = f"it used more than {MAX_TOTAL_MEMORY // 2**30} GiB of memory"
    finally:
        if process.poll() is None:
            end_worker(process, kill_command)
    output, error = (reader.text() for reader in readers)
    return output, error, stop_reason


class _StreamReader:
    """A thread that reads the output of a process from a pipe, up to `MAX_OUTPUT_BYTES` bytes."""

    def __init__(self, pipe):
        self._pipe = pipe
        self._content = bytearray()
        self.is_full = False
        self._thread = threading.Thread(target=self._read_pipe, daemon=True)
        self._thread.start()

    def _read_pipe(self) -> None:
        while not self.is_full and (piece := self._pipe.read1(65_536)):
            self._content += piece
            self.is_full = len(self._content) > MAX_OUTPUT_BYTES

    def ended_within_poll(self) -> bool:
        """Wait up to `POLL_SECONDS` for the end of the output; return True if it has ended."""
        self._thread.join(POLL_SECONDS)
        return not self._thread.is_alive()

    def text(self) -> str:
        self._thread.join()
        self._pipe.close()
        return self._content[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")


@needs_sandbox
def run_python(code: str) -> str:
    """Run a Python program and return what it prints. Nothing is kept from earlier calls.

    Args:
        code: the program; print everything that you want to see
    """
    execution = execute(code)
    output, error = execution.output.rstrip(), execution.error
    if len(output) > MAX_SHOWN_CHARACTERS:
        length = f"{len(output):,}" if not execution.stop_reason else "more"
        output = f"{output[:MAX_SHOWN_CHARACTERS]} ... [cut: the first {MAX_SHOWN_CHARACTERS:,} of {length} characters]"
    lines = [output] if output else []
    if execution.stop_reason:
        lines.append(f"Stopped: {execution.stop_reason}.")
    elif execution.exit_code:
        lines.append(error[: bootstrap.MAX_ERROR_CHARACTERS] or f"It ended with exit code {execution.exit_code}.")
    return "\n".join(lines) or "It printed nothing: use print."
