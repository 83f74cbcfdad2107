"""A parser with one-line errors, `--version` and no abbreviated options; and types of options that name an output."""

import argparse
import difflib
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# The option of the running command for each argument, such as --max_steps for max_steps, for error messages.
option_spellings: dict[str, str] = {}

MAX_MESSAGE_LENGTH = 1200  # characters


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
        new_actions = [action for action in self._actions if action.dest not in option_spellings]
        option_spellings.update({action.dest: _option_text(action) for action in new_actions})
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
    from grpo_lab import __version__

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


def one_line(text: str) -> str:
    """Return the text without line breaks, and if it is very long without its middle."""
    text = " ".join(text.split())
    if len(text) <= MAX_MESSAGE_LENGTH:
        return text
    return f"{text[: MAX_MESSAGE_LENGTH // 3]} ... {text[-MAX_MESSAGE_LENGTH // 2 :]}"


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


def _option_text(action: argparse.Action) -> str:
    if action.option_strings:
        return action.option_strings[-1]
    return action.metavar if isinstance(action.metavar, str) else action.dest
