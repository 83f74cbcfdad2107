"""argparse's parser with the errors of this package, `--version`, and no abbreviations."""

import argparse
import difflib
import platform
import re
import shlex
import subprocess
import sys
from contextvars import ContextVar
from importlib import metadata

# Options of the parsers that have read a command line: name of the setting -> how it is written there.
options: ContextVar[dict[str, str]] = ContextVar("options")

# What argparse says -> how this package says it.
SAYINGS = (
    (r"argument (\S+): invalid choice: (.*?) \(choose from (.*)\)", r"\1 is \2; expected one of \3"),
    (r"argument (\S+): invalid int( or none)? value: (.*)", r"\1 is \3; expected a whole number\2"),
    (r"argument (\S+): invalid float( or none)? value: (.*)", r"\1 is \3; expected a number\2"),
    (r"argument (\S+): invalid (.*) value: (.*)", r"\1 is \3; expected \2"),
    (r"argument (\S+): expected (.*) arguments?", r"\1 has no value; expected \2"),
    (r"argument (\S+): ignored explicit argument (.*)", r"\1 is \2; expected no value"),
    (r"argument (\S+): not allowed with argument (\S+)", r"\1 is given together with \2; expected one of them"),
    (r"argument (\S+): (.*)", r"\1 \2"),
    (r"the following arguments are required: (.*)", r"\1 is missing; expected a value"),
    (r"one of the arguments (.*) is required", r"nothing is chosen; expected one of \1"),
)
LONGEST = 200  # letters of a value that a message repeats


class Parser(argparse.ArgumentParser):
    """One line for an error, and exit code 2; `--help` has the options, which are many.

    What it reads it also tells to `command`, so that an error of the package names the option and not the argument.
    """

    def __init__(self, **settings):
        super().__init__(**({"allow_abbrev": False} | settings))
        self.add_argument("--version", action="version", version=version_line(), help="show versions, and stop")
        # argparse takes -0.2 for a number, and -1e-3 and -inf for options that it does not know.
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|-(inf|nan)$", re.IGNORECASE)

    def parse_known_args(self, args=None, namespace=None):
        written = {action.dest: _written(action) for action in self._actions}
        options.set(options.get({}) | written)
        return super().parse_known_args(args, namespace)

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {self._said(message)}\n")

    def _said(self, message: str) -> str:
        if found := re.fullmatch("unrecognized arguments: (.*)", message, re.DOTALL):
            return self._unknown(found[1])
        for pattern, saying in SAYINGS:
            if found := re.fullmatch(pattern, message, re.DOTALL):
                message = found.expand(saying)
                break
        return one_line(message)

    def _unknown(self, text: str) -> str:
        unknown = next((word for word in text.split() if word.startswith("-")), text.split()[0]).split("=")[0]
        near = difflib.get_close_matches(unknown, self._option_string_actions, n=1)
        meant = f"did you mean {near[0]}?" if near else "--help lists what there is"
        return f"{one_line(unknown)} is not known here; {meant}"


def version_line() -> str:
    """Such as "grpo_lab 0.1.0, torch 2.13.0, transformers 5.17.0, Python 3.12.3"; nothing is imported for it."""
    from grpo_lab import __version__

    others = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers"))
    return f"grpo_lab {__version__}, {others}, Python {platform.python_version()}"


def shell_line(words: list[str]) -> str:
    """A command line, quoted as this machine's shell wants it."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def one_line(text: str) -> str:
    """Without line breaks, and with the middle of what is very long left out."""
    text = " ".join(text.split())
    return re.sub(rf"\S{{{LONGEST},}}", lambda long: f"{long[0][:20]}...{long[0][-20:]}", text)


def _written(action: argparse.Action) -> str:
    if action.option_strings:
        return action.option_strings[-1]
    return action.metavar if isinstance(action.metavar, str) else action.dest


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(not installed)"
