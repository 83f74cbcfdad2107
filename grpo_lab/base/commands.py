"""The parts that all commands share: the decorator of their `main`, their errors, their parser, and words of a shell.

`command` decorates `main`: it reports errors, in one line if they are the user's (`user_error_line`), and returns the
exit code. `Parser` reads the options. The functions after it write names, versions and command lines as text, and check
files and folders that an option names.
"""

import argparse
import difflib
import functools
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from grpo_lab import __version__
from grpo_lab.base.checks import InputError

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
MAX_MESSAGE_LENGTH = 1200  # characters
# The option of the running command for each argument, such as --max_steps for max_steps, for error messages.
option_spellings: dict[str, str] = {}


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
        text = (option or name) + error.message_after_argument
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
    errors = getattr(error, "combined_errors", ()) or [error]
    return [line for line in map(user_error_line, errors) if line is not None]


def one_line(text: str) -> str:
    """Return the text without line breaks, and if it is very long without its middle."""
    text = " ".join(text.split())
    if len(text) <= MAX_MESSAGE_LENGTH:
        return text
    return f"{text[: MAX_MESSAGE_LENGTH // 3]} ... {text[-MAX_MESSAGE_LENGTH // 2 :]}"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that prints an error as one line and exits with code 2.

    It adds the options that it parses to `option_spellings`, for the messages of later errors.
    """

    error_suffix = ""  # a text at the end of each error, such as the file that the options come from

    def __init__(self, **keywords):
        super().__init__(**({"allow_abbrev": False} | keywords))
        self.prog = self.prog.replace("python -m grpo_lab.", command_name(""))
        self.add_argument("--version", action="version", version=version_line(), help="show versions, and stop")
        # By default, argparse reads -0.2 as a number, but -1e-3 and -inf as unknown options.
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|-(inf|nan)$", re.IGNORECASE)

    @property
    def options_by_name(self) -> dict[str, argparse.Action]:
        """The actions of all options and arguments except --help and --version, by their names in the result."""
        return {action.dest: action for action in self._actions if action.dest not in ("help", "version")}

    def parse_known_args(self, args=None, namespace=None):
        for action in self._actions:
            # An argument without a flag is named in errors as in the usage line.
            metavar = action.metavar if isinstance(action.metavar, str) else action.dest
            option_spellings.setdefault(action.dest, action.option_strings[-1] if action.option_strings else metavar)
        if not self.error_suffix:  # if an option has several names, errors show the typed one
            words = [word.partition("=")[0] for word in (sys.argv[1:] if args is None else args)]
            actions = self._option_string_actions
            option_spellings.update({actions[word].dest: word for word in words if word in actions})
        return super().parse_known_args(args, namespace)

    def parse_args(self, args=None, namespace=None):
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), unknown[0]).split("=")[0]
            similar = difflib.get_close_matches(word, self._option_string_actions, n=1)
            hint = f"did you mean {similar[0]}?" if similar else "--help lists what there is"
            self.error(f"{word} is not known here; {hint}")
        return namespace

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {one_line(message)}{self.error_suffix}\n")


def command_name(module: str) -> str:
    """Return the command for a module as the user typed it, `grpo-lab train` or `python -m grpo_lab.train`.

    module: The module's name without "grpo_lab.", such as "train".
    """
    return ("grpo-lab " if Path(sys.argv[0]).stem == "grpo-lab" else "python -m grpo_lab.") + module


def version_line() -> str:
    """Return the versions of this package, torch, transformers and Python, without importing torch."""
    packages = ", ".join(f"{name} {installed_version(name)}" for name in ("torch", "transformers"))
    return f"grpo_lab {__version__}, {packages}, Python {platform.python_version()}"


def installed_version(name: str) -> str:
    """Return the version of an installed package, or "not installed"."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def shell_line(words: list[str]) -> str:
    """Join words into a command line, quoted for this machine's shell."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def as_option_text(value) -> str:
    """Return the value of an option in the form in which it is typed on a command line."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else str(value).lower()


def writable_file(text: str) -> Path:
    """Convert the value of an option such as --json to a path, after checking that the file can be written.

    Nothing is written yet.
    """
    file = Path(text)
    if not text or file.is_dir() or _reason_not_writable(file.parent):
        problem = f"is not the name of a file in a folder that can be written{_reason_not_writable(file.parent)}"
        raise argparse.ArgumentTypeError(f"{text!r} {problem}")
    return file


def writable_folder(text: str) -> Path:
    """Convert the value of an option to a path, after checking that the folder can be written to or made.

    The folder is not made yet.
    """
    folder = Path(text)
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    if not text or _reason_not_writable(existing):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a folder that can be written{_reason_not_writable(existing)}"
        )
    return folder


def _reason_not_writable(folder: Path) -> str:
    """Return the reason why no file can be written into a folder, as " (FOLDER: REASON)", or "" if one can.

    A file is written to find out, since os.access does not notice a full disk or the permissions of a network share.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(b"{}")
    except OSError as error:
        return f" ({folder}: {error.strerror or error})"
    return ""
