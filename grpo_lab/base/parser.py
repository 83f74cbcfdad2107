"""argparse with errors in one line, `--version` and no abbreviations; and the types of options that name an output."""

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

option_spellings: dict[str, str] = {}  # argument -> how the running command writes it, such as max_steps -> --max_steps

MAX_MESSAGE_LENGTH = 1200  # characters of a message


class Parser(argparse.ArgumentParser):
    """One line for an error, with exit code 2. What it reads is added to `option_spellings`, for later errors."""

    error_suffix = ""  # ends an error: the file that the words come from

    def __init__(self, **settings):
        super().__init__(**({"allow_abbrev": False} | settings))
        self.prog = self.prog.replace("python -m grpo_lab.", command_name(""))
        self.add_argument("--version", action="version", version=version_line(), help="show versions, and stop")
        # argparse takes -0.2 for a number, and -1e-3 and -inf for options that it does not know.
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|-(inf|nan)$", re.IGNORECASE)

    @property
    def options_by_name(self) -> dict[str, argparse.Action]:
        """The options and arguments that it reads, by their names in the result, without --help and --version."""
        return {action.dest: action for action in self._actions if action.dest not in ("help", "version")}

    def parse_known_args(self, args=None, namespace=None):
        unknown = [action for action in self._actions if action.dest not in option_spellings]
        option_spellings.update({action.dest: _option_text(action) for action in unknown})
        if not self.error_suffix:  # of several names for an option, errors say the one that was typed
            words = [word.partition("=")[0] for word in (sys.argv[1:] if args is None else args)]
            actions = self._option_string_actions
            option_spellings.update({actions[word].dest: word for word in words if word in actions})
        return super().parse_known_args(args, namespace)

    def parse_args(self, args=None, namespace=None):
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), unknown[0]).split("=")[0]
            near = difflib.get_close_matches(word, self._option_string_actions, n=1)
            self.error(
                f"{word} is not known here; {f'did you mean {near[0]}?' if near else '--help lists what there is'}"
            )
        return namespace

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {one_line(message)}{self.error_suffix}\n")


def command_name(module: str) -> str:
    """How the reader called "train": as `grpo-lab train`, or as `python -m grpo_lab.train`."""
    return ("grpo-lab " if Path(sys.argv[0]).stem == "grpo-lab" else "python -m grpo_lab.") + module


def version_line() -> str:
    """Such as "grpo_lab 0.1.0, torch 2.13.0, transformers 5.17.0, Python 3.12.3"; nothing is imported for it."""
    from grpo_lab import __version__

    packages = ", ".join(f"{name} {installed_version(name)}" for name in ("torch", "transformers"))
    return f"grpo_lab {__version__}, {packages}, Python {platform.python_version()}"


def shell_line(words: list[str]) -> str:
    """A command line, quoted as this machine's shell wants it."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def one_line(text: str) -> str:
    """The text without line breaks, and without the middle of what is very long."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[: MAX_MESSAGE_LENGTH // 3]} ... {text[-MAX_MESSAGE_LENGTH // 2 :]}"


def writable_file(text: str) -> Path:
    """The type of an option such as --json: a file that can be written. One that exists is left as it is."""
    file = Path(text)
    if not text or file.is_dir() or _write_error(file.parent):
        where = f"in a folder that can be written{_write_error(file.parent)}"
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file {where}")
    return file


def writable_folder(text: str) -> Path:
    """The type of an option such as --output: a folder that can be written to or made; nothing is made yet."""
    folder = Path(text)
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    if not text or _write_error(existing):
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder that can be written{_write_error(existing)}")
    return folder


def write_at_once(file: Path, text: str) -> None:
    """Write the file whole or not at all. Half of a character, which no file can hold, becomes a question mark."""
    unfinished = file.with_name(file.name + ".unfinished")
    unfinished.write_bytes(text.encode("utf-8", "replace"))
    unfinished.replace(file)


def _write_error(folder: Path) -> str:
    """Say why nothing can be written there, if so; tried, since os.access sees no full disk or rights of a share."""
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


def installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
