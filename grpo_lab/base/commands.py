"""Running a `main` function as a command: one line for an error that the user can correct, and exit codes."""

import functools
import os
import re
import sys
import traceback
from collections.abc import Callable

from grpo_lab.base.checks import InputError
from grpo_lab.base.parser import command_name, one_line, option_spellings

EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 130, 141
REPORT_BUG_HINT = (
    "This is a bug of grpo_lab. Please report it: with these lines, the command, and what "
    "`python -m grpo_lab.doctor` prints."
)
TRACEBACK_HINT = "(GRPO_LAB_TRACEBACK=1 shows where this comes from)"
# Texts in the out-of-memory errors of torch and CUDA, on GPUs and on the CPUs of Linux, macOS and Windows.
OUT_OF_MEMORY = re.compile(r"out of memory|DefaultCPUAllocator|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
# Options whose values are passed to a function under another name: the option of each such argument.
OPTION_OF_ARGUMENT = {"name": "model", "source": "task"}


class Stopped(KeyboardInterrupt):
    """Raised after a run was stopped by Ctrl-C or SIGTERM and has saved its state.

    message: What the run did before it stopped.
    exit_code: The exit code of a process that this signal ended, 130 or 143.
    resume_hint: How to resume the run, for the end of the message; None if it cannot be resumed.
    """

    def __init__(self, message: str, exit_code: int = EXIT_INTERRUPTED, resume_hint: str | None = None):
        super().__init__(message if resume_hint is None else f"{message} {resume_hint}")
        self.message = message
        self.exit_code = exit_code
        self.resume_hint = resume_hint


def command(module: str) -> Callable:
    """Return a decorator that makes a `main` function print the user's errors in one line and return an exit code.

    The decorated function takes a list of arguments or None, and returns an exit code or None.

    module: The module of the command, such as "grpo_lab.train", or a script, such as "notebooks/build.py".
    """

    def decorate(main: Callable) -> Callable[..., int]:
        @functools.wraps(main)
        def run_main(arguments: list[str] | None = None) -> int:
            option_spellings.clear()
            _escape_unencodable_characters()
            try:
                return _run_and_flush(main, arguments)
            except KeyboardInterrupt as stop:
                print(f"\n{str(stop) or 'stopped'}", file=sys.stderr)
                return getattr(stop, "exit_code", EXIT_INTERRUPTED)
            except BrokenPipeError:  # the program that read the output has ended
                # Standard output is redirected to avoid a second error when Python flushes it at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return EXIT_BROKEN_PIPE
            except Exception as error:
                return _report_error(module, error)

        return run_main

    return decorate


def user_error_line(error: Exception) -> str | None:
    """Return one line on an error that the user can correct, or None for a bug of this package.

    The user can correct an InputError, an OSError (files and the network), a missing package, and a lack of memory. Any
    other error, also a plain ValueError, is a bug.
    """
    traceback_hint = f" {TRACEBACK_HINT}" if error.__cause__ is not None else ""
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(f"{type(error).__name__} {error}")
    ):
        text = f"out of memory ({one_line(str(error).split('. ')[0]) or 'MemoryError'})"
        return f"{text}; `python -m grpo_lab.memory` plans what a run takes, and what to turn down"
    if isinstance(error, InputError):
        name = error.argument
        option = option_spellings.get(name) or option_spellings.get(OPTION_OF_ARGUMENT.get(name, ""))
        text = (option or name) + error.details
    elif isinstance(error, OSError):
        has_file = error.strerror and error.filename is not None
        text = f"{str(error.filename)!r}: {error.strerror}" if has_file else str(error) or type(error).__name__
        traceback_hint = f" {TRACEBACK_HINT}" if error.errno is not None and not has_file else traceback_hint
    elif isinstance(error, ModuleNotFoundError) and not f"{error.name}.".startswith("grpo_lab."):
        text, traceback_hint = f"the package {error.name} is not installed", f" {TRACEBACK_HINT}"
    else:
        return None
    return one_line(text) + traceback_hint


def user_error_lines(error: Exception) -> list[str]:
    """Return one line on each error that an error combines, as `user_error_line` does; [] for a bug of this package."""
    errors = getattr(error, "combined", ()) or [error]
    return [line for line in map(user_error_line, errors) if line is not None]


def _report_error(module: str, error: Exception) -> int:
    if (line := user_error_line(error)) is None:
        error.add_note(REPORT_BUG_HINT)
        raise error
    if os.environ.get("GRPO_LAB_TRACEBACK") == "1":
        traceback.print_exception(error)
    line = line.replace("python -m grpo_lab.", command_name(""))
    if module.startswith("grpo_lab."):
        module = command_name(module.removeprefix("grpo_lab."))
    print(f"{f'python {module}' if module.endswith('.py') else module}: error: {line}", file=sys.stderr)
    return EXIT_USER_ERROR


def _run_and_flush(main: Callable, arguments: list[str] | None) -> int:
    """Run `main` and flush its output, so that a closed pipe raises its error here and not when Python exits."""
    try:
        return main(arguments) or 0
    finally:
        if sys.stdout is not None and not isinstance(sys.exception(), Exception):
            sys.stdout.flush()


def _escape_unencodable_characters() -> None:
    """Let print write a character that the console cannot encode as its escape sequence, such as \\u8c01."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
