"""A `main` as a command: which exceptions the user can fix, the one line about them, and the exit code."""

import functools
import os
import re
import sys
import traceback
from collections.abc import Callable

from grpo_lab.base.checks import InputError
from grpo_lab.base.parser import command_name, one_line, option_spellings

FAILED, INTERRUPTED, NO_READER = 2, 130, 141
BUG = (
    "This is a bug of grpo_lab. Please report it: with these lines, the command, and what "
    "`python -m grpo_lab.doctor` prints."
)
TRACEBACK_HINT = "(GRPO_LAB_TRACEBACK=1 shows where this comes from)"
# The words of torch and CUDA, on GPUs, Linux, macOS and Windows.
OUT_OF_MEMORY = re.compile(r"out of memory|DefaultCPUAllocator|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
OPTION_OF_ARGUMENT = {"name": "model", "source": "task"}  # arguments of functions that the commands call under another name


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, by Ctrl-C or by SIGTERM, and has saved its state; the message says what it did.

    exit_code: what a shell expects of a process that this signal ended: 130 or 143.
    resume_hint: how to go on, which ends the message; None where there is nothing to go on from.
    """

    def __init__(self, message: str, exit_code: int = INTERRUPTED, resume_hint: str | None = None):
        super().__init__(message if resume_hint is None else f"{message} {resume_hint}")
        self.message = message
        self.exit_code = exit_code
        self.resume_hint = resume_hint


def command(module: str) -> Callable:
    """Make a `main(arguments) -> int | None` of the command `python -m <module>`; it returns the exit code.

    module: such as "grpo_lab.train"; or a script, such as "notebooks/build.py".
    """

    def decorate(main: Callable) -> Callable[..., int]:
        @functools.wraps(main)
        def run(arguments: list[str] | None = None) -> int:
            option_spellings.clear()
            _escape_unencodable_characters()
            try:
                return _run_and_flush(main, arguments)
            except KeyboardInterrupt as stop:
                print(f"\n{str(stop) or 'stopped'}", file=sys.stderr)
                return getattr(stop, "exit_code", INTERRUPTED)
            except BrokenPipeError:  # the reader of the output has gone; Python would report it once more at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return NO_READER
            except Exception as error:
                return _report_error(module, error)

        return run

    return decorate


def line_for(error: Exception) -> str | None:
    """The line that tells a user what to mend; None for a bug, about which a user can do nothing.

    An InputError, a file or a network that is not as it should be, a package that is missing, and full memory are
    theirs; any other error, a plain ValueError too, is a bug.
    """
    traceback_hint = f" {TRACEBACK_HINT}" if error.__cause__ is not None else ""
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(f"{type(error).__name__} {error}")
    ):
        text = f"out of memory ({one_line(str(error).split('. ')[0]) or 'MemoryError'})"
        return f"{text}; `python -m grpo_lab.memory` plans what a run takes, and what to turn down"
    if isinstance(error, InputError):
        name = error.argument
        text = (option_spellings.get(name) or option_spellings.get(OPTION_OF_ARGUMENT.get(name, "")) or name) + error.details
    elif isinstance(error, OSError):
        has_file = error.strerror and error.filename is not None
        text = f"{str(error.filename)!r}: {error.strerror}" if has_file else str(error) or type(error).__name__
        traceback_hint = f" {TRACEBACK_HINT}" if error.errno is not None and not has_file else traceback_hint
    elif isinstance(error, ModuleNotFoundError) and not f"{error.name}.".startswith("grpo_lab."):
        text, traceback_hint = f"the package {error.name} is not installed", f" {TRACEBACK_HINT}"
    else:
        return None
    return one_line(text) + traceback_hint


def _report_error(module: str, error: Exception) -> int:
    if (line := line_for(error)) is None:
        error.add_note(BUG)
        raise error
    if os.environ.get("GRPO_LAB_TRACEBACK") == "1":
        traceback.print_exception(error)
    line = line.replace("python -m grpo_lab.", command_name(""))
    if module.startswith("grpo_lab."):
        module = command_name(module.removeprefix("grpo_lab."))
    print(f"{f'python {module}' if module.endswith('.py') else module}: error: {line}", file=sys.stderr)
    return FAILED


def _run_and_flush(main: Callable, arguments: list[str] | None) -> int:
    """Run `main` and flush its output: a closed pipe is then an error of `main`, and not one at the exit of Python."""
    try:
        return main(arguments) or 0
    finally:
        if sys.stdout is not None and not isinstance(sys.exception(), Exception):
            sys.stdout.flush()


def _escape_unencodable_characters() -> None:
    """Print a character that the console cannot encode as its number, such as \\u8c01, without an error."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
