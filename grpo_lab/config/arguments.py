"""Settings of a `GRPOConfig` as options of a command: `--beta 0.04`, `--gradient_checkpointing true`."""

import functools
import inspect
import re
import types
import typing
from argparse import SUPPRESS, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Iterable
from dataclasses import fields

from grpo_lab.commands import Parser
from grpo_lab.config import defaults
from grpo_lab.config.ranges import CHOICES, options
from grpo_lab.config.settings import GRPOConfig

METAVARS = {int: "N", float: "X", bool: "true|false", str: "NAME"}


def settings_parser(command: str, names: Iterable[str], needed: str = "") -> Parser:
    """The parser of a command, with one option a setting. What was not given is absent from its result.

    command: the name of its module, such as "grpo_lab.train".
    names: settings of `GRPOConfig`. Their help is what stands beside them there, and so are their groups.
    needed: options that the command cannot do without, for the first line of its help.
    """
    parser = Parser(
        prog=f"python -m {command}",
        usage=" ".join(["%(prog)s", needed, "[options]"]).replace("  ", " "),
        argument_default=SUPPRESS,
        formatter_class=RawDescriptionHelpFormatter,
        epilog=defaults.table(),
    )
    settings, groups = {field.name: field for field in fields(GRPOConfig)}, {}
    said = settings_said()
    for name in names:
        title, words = said[name]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)  # shown after the command's own options
        words = words or (f"one of {', '.join(map(str, CHOICES[name]))}" if name in CHOICES else "")
        text = f"{words} (default: {_default_said(name, settings[name].default)})".strip().replace("%", "%%")
        groups[title].add_argument(f"--{name}", help=text, **_argument_type(settings[name].type))
    return parser


def _default_said(name: str, default) -> str:
    if name == "max_completion_length":
        return "the task's"
    if name in defaults.SETTINGS:
        return "by the model's size, see below"
    return str(default).lower() if isinstance(default, bool) else str(default)


@functools.cache
def settings_said() -> dict[str, tuple[str, str]]:
    """Of each setting its group, and what is said of it: the comments of `GRPOConfig`, which say it once."""
    said, title = {}, ""
    for line in inspect.getsource(GRPOConfig).splitlines():
        if found := re.fullmatch(r"    # (.*)", line):
            title = re.split("[;,]", found[1])[0]
        elif found := re.fullmatch(r"    (\w+): [^#=]+ = [^#]+?(?:  # (.*))?", line):
            said[found[1]] = title, found[2] or ""
    return said


def _argument_type(annotation) -> dict:
    """How argparse reads a setting: bool as true or false, list[float] as numbers, "none" where None is a value."""
    allowed = options(annotation)
    kind = next(option for option in allowed if option is not types.NoneType)
    if typing.get_origin(kind) is list:
        (kind,) = typing.get_args(kind)
        return {"type": kind, "nargs": "+", "metavar": METAVARS[kind]}
    read = _boolean if kind is bool else kind
    return {"type": _or_none(read) if types.NoneType in allowed else read, "metavar": METAVARS[kind]}


def _or_none(kind):
    def read(text: str):
        return None if text.lower() == "none" else kind(text)

    read.__name__ = f"{kind.__name__} or none"  # argparse puts it into its message
    return read


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ArgumentTypeError(f"is {text!r}; expected true or false")
    return text.lower() == "true"
