"""A program that a model wrote, run behind the walls: no network, no home folder, and limits on all that it takes.

Without walls nothing is run. Its limits: seconds of computing (and four times as many on the clock), memory, processes,
the size of files and of what is printed.
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
from grpo_lab.sandbox import first_lines
from grpo_lab.sandbox.walls import behind, end_worker, kill_command, memory_of, private_places, strong_wall, tasks_of

SECONDS, CLOCK = 5.0, 4.0  # of computing; and how many times as long it may take on the clock
MEMORY, ALL_MEMORY = 2**31, 2**31  # bytes of a process, beyond what is loaded, and of all together
FILE_SIZE, OPEN_FILES, TASKS = 16_000_000, 64, 50
PRINTED = 1_000_000  # bytes: who prints more is stopped
LONGEST_OUTPUT = 2000  # characters that a model gets to read
LOOK = 0.05  # seconds between two looks at what runs
TOO_LONG, OUT_OF_TIME = "it ran longer than {:g} seconds", 128 + 24  # exit code after SIGXCPU
KILLED = 128 + 9  # exit code of who ignores that signal, and computes on to the hard limit
PYTHON_TOOL = "python"  # the name of `run_python` for the commands
NO_WALLS = (
    "what a model writes is run in a sandbox only, and there is none on this machine ({}). Install bubblewrap (Linux: "
    "apt install bubblewrap, or dnf install bubblewrap) or build the image of the Dockerfile"
)


@dataclass(frozen=True)
class Execution:
    """The outcome of a program.

    output: what it printed, up to `PRINTED` bytes. error: the last line that it wrote to stderr. exit_code: 0 if it
    ended well. stopped: why it was ended from outside, such as "it ran longer than 5 seconds"; "" if it was not.
    """

    output: str
    error: str
    exit_code: int
    stopped: str

    @property
    def succeeded(self) -> bool:
        """True if it ended by itself, without an error."""
        return self.exit_code == 0 and not self.stopped


def needs_walls(function: Callable) -> Callable:
    """A function that is refused, before a run begins, where there are no walls."""
    function.__dict__["needs_walls"] = True
    return function


def check_walls(argument: str, function: Callable) -> None:
    """Raise RunError if a function runs what a model wrote, and this machine has no walls around it."""
    while isinstance(function, functools.partial):
        function = function.func
    if getattr(function, "needs_walls", False) and not wall()[0]:
        name = getattr(function, "__name__", "a function")
        raise RunError(argument, function, NO_WALLS.format(wall()[1]), found=f"has {name!r}")


@functools.cache
def wall() -> tuple[str, str]:
    """The wall that is used, "bubblewrap" or "docker"; "" where there is none, and why."""
    return strong_wall()


def execute(code: str, stdin: str = "", tests: str | None = None, seconds: float = SECONDS) -> Execution:
    """Run a Python program behind the walls.

    Args:
        code: the program. It has the standard library and the installed packages.
        stdin: what it reads.
        tests: a program that goes on with its names, such as assert statements, in place of `stdin`. The program cannot
            exit before them and succeed; it can cheat them otherwise, since they run in its own process.
        seconds: of computing; on the clock it may take four times as many.

    Raises:
        RunError: where there are no walls.
    """
    check_positive("seconds", seconds)
    kind, why = wall()
    if not kind:
        raise RunError("sandbox", found=f"is missing: {NO_WALLS.format(why)}")
    name, token = f"grpo-lab-{uuid.uuid4().hex}", uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="grpo-lab-program-", ignore_cleanup_errors=True) as folder_name:
        folder = Path(folder_name).resolve()
        folder.chmod(0o755)  # a container reads it as nobody
        files = {"program.py": code, "stdin": stdin} | ({} if tests is None else {"tests.py": tests})
        for file_name, text in files.items():
            (folder / file_name).write_bytes(text.encode("utf-8", "replace"))
        if tests is not None:
            (folder / "stdin").write_text(f"{token}\n", encoding="ascii")
        command, settings = behind(kind, name, folder, _first_lines(seconds), folder, private_places(), ("-s",))
        with open(folder / "stdin", "rb") as file:
            (folder / "stdin").unlink()  # what is read there is no file that the program could open
            process = subprocess.Popen(
                command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **settings
            )
            began = time.monotonic()
        output, error, stopped = _watch(process, kill_command(kind, name), seconds)
    if process.returncode == OUT_OF_TIME or (process.returncode == KILLED and time.monotonic() - began > seconds):
        stopped = stopped or TOO_LONG.format(seconds)
    exit_code, ending = process.returncode, f"{token}\n"
    if tests is not None:
        exit_code = exit_code or int(not output.endswith(ending))
    return Execution(output.removesuffix(ending), (error.strip().splitlines() or [""])[-1], exit_code, stopped)


def _first_lines(seconds: float) -> str:
    limits = (max(1, round(seconds)), MEMORY, FILE_SIZE, OPEN_FILES)
    return f"{inspect.getsource(first_lines)}\nrun(*{limits})"


def _watch(process: subprocess.Popen, kill: list[str], seconds: float) -> tuple[str, str, str]:
    """Wait for the end of a process, or end it: what it wrote to stdout and stderr, and why it was ended."""
    streams = [_Stream(process.stdout), _Stream(process.stderr)]
    deadline, stopped = time.monotonic() + CLOCK * seconds, ""
    try:
        while not stopped:
            if streams[0].is_over() and streams[1].is_over() and process.poll() is not None:
                break
            if any(stream.is_full for stream in streams):
                stopped = f"it printed more than {PRINTED:,} bytes"
            elif time.monotonic() > deadline:
                stopped = TOO_LONG.format(seconds)
            elif tasks_of(process.pid) > TASKS:
                stopped = f"it started more than {TASKS} processes or threads"
            elif memory_of(process.pid) > ALL_MEMORY:
                stopped = f"it used more than {ALL_MEMORY // 2**30} GiB of memory"
    finally:
        if process.poll() is None:
            end_worker(process, kill)
    texts = [stream.text() for stream in streams]
    return texts[0], texts[1], stopped


class _Stream:
    """A thread that reads what a process writes to a pipe, up to a limit."""

    def __init__(self, pipe):
        self._pipe = pipe
        self._read = bytearray()
        self.is_full = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self.is_full and (piece := self._pipe.read1(65_536)):
            self._read += piece
            self.is_full = len(self._read) > PRINTED

    def is_over(self) -> bool:
        """Wait a moment for the end."""
        self._thread.join(LOOK)
        return not self._thread.is_alive()

    def text(self) -> str:
        self._thread.join()
        self._pipe.close()
        return self._read[:PRINTED].decode("utf-8", "replace")


@needs_walls
def run_python(code: str) -> str:
    """Run a Python program and return what it prints. Each call begins anew.

    Args:
        code: the program; what it is to show, it has to print
    """
    execution = execute(code)
    output, error = execution.output.rstrip(), execution.error
    if len(output) > LONGEST_OUTPUT:
        length = f"{len(output):,}" if not execution.stopped else "more"
        output = f"{output[:LONGEST_OUTPUT]} ... [cut: the first {LONGEST_OUTPUT:,} of {length} characters]"
    lines = [output] if output else []
    if execution.stopped:
        lines.append(f"Stopped: {execution.stopped}.")
    elif execution.exit_code:
        lines.append(error[: first_lines.LONGEST_ERROR] or f"It ended with exit code {execution.exit_code}.")
    return "\n".join(lines) or "It printed nothing: use print."
