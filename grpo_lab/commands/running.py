"""A `main` as a command: which exceptions are the user's to mend, what is said of them, and which exit code follows."""

import contextlib
import errno
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable

from grpo_lab.commands.errors import FAULT_OF_OURS, in_words_of_the_shell, line_for
from grpo_lab.commands.parser import options

FAILED, INTERRUPTED, NO_READER = 2, 130, 141


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, by Ctrl-C or by SIGTERM, and has done what there was to do; the message says what.

    exit_code: what a shell expects of a process that this signal ended: 130 or 143.
    """

    def __init__(self, message: str, exit_code: int = INTERRUPTED):
        super().__init__(message)
        self.exit_code = exit_code


def command(module: str) -> Callable:
    """Make a `main(arguments) -> int | None` of the command `python -m <module>`; it returns the exit code.

    module: such as "grpo_lab.train"; or a script, such as "notebooks/build.py".

    Raises:
        SystemExit: from argparse, for --help, --version and a command line that cannot be read.
        Exception: what is a fault of grpo_lab, with a note that asks to report it.
    """
    name = f"python {module}" if module.endswith(".py") else f"python -m {module}"

    def decorate(main: Callable) -> Callable[..., int]:
        script = inspect.unwrap(main).__code__.co_filename

        @functools.wraps(main)
        def run(arguments: list[str] | None = None) -> int:
            options.set({})
            _print_every_letter()
            try:
                return _flushed(main, arguments)
            except KeyboardInterrupt as stop:
                print(f"\n{in_words_of_the_shell(str(stop)) or 'stopped'}", file=sys.stderr)
                return getattr(stop, "exit_code", INTERRUPTED)
            except Exception as error:
                return NO_READER if _reader_has_gone(error) else _failed(name, error, script)

        return run

    return decorate


def _failed(name: str, error: Exception, script: str) -> int:
    if (line := line_for(error, script)) is None:
        error.add_note(FAULT_OF_OURS)
        raise error
    if os.environ.get("GRPO_LAB_TRACEBACK") == "1":
        traceback.print_exception(error)
    print(f"{name}: error: {line}", file=sys.stderr)
    return FAILED


def _flushed(main: Callable, arguments: list[str] | None) -> int:
    """What is still to be written meets a closed pipe here, and not when Python ends."""
    try:
        code = main(arguments) or 0
    except SystemExit:
        _flush()
        raise
    _flush()
    return code


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _reader_has_gone(error: Exception) -> bool:
    """Whether nobody reads the output any more. A pipe to a process of our own may break, too: that is an error."""
    # Windows says "invalid argument", as it does for the name of a file; but then there is a name.
    broken = isinstance(error, BrokenPipeError) or (
        os.name == "nt" and isinstance(error, OSError) and error.errno == errno.EINVAL and error.filename is None
    )
    if not broken:
        return False
    try:
        print(flush=True)
    except OSError:
        with contextlib.suppress(OSError, ValueError):  # else Python would meet the closed pipe again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _print_every_letter() -> None:
    """A console that lacks a letter gets its number in its place, such as \\u8c01, and no error."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
