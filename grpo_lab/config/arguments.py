"""Settings of a `GRPOConfig` as options of a command: `--beta 0.04`, `--gradient_checkpointing true`."""

import types
import typing
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Iterable
from dataclasses import fields

from grpo_lab.commands import Parser
from grpo_lab.config.ranges import options
from grpo_lab.config.settings import GRPOConfig


def settings_parser(command: str, names: Iterable[str], **defaults) -> Parser:
    """The parser of a command, with one option a setting. What was not given is absent from its result.

    command: the name of its module, such as "grpo_lab.train".
    names: settings of `GRPOConfig`.
    defaults: what the help gives as a setting's default, where the command's own differs from `GRPOConfig`'s.
    """
    parser = Parser(prog=f"python -m {command}", argument_default=SUPPRESS)
    group = parser.add_argument_group("settings of the run")  # shown after the command's own options
    settings = {field.name: field for field in fields(GRPOConfig)}
    for name in names:
        default = defaults.get(name, settings[name].default)
        group.add_argument(f"--{name}", help=f"(default {default})", **_argument_type(settings[name].type))
    return parser


def _argument_type(annotation) -> dict:
    """How argparse reads a setting: bool as true or false, list[float] as numbers, "none" where None is a value."""
    allowed = options(annotation)
    kind = next(option for option in allowed if option is not types.NoneType)
    if typing.get_origin(kind) is list:
        return {"type": typing.get_args(kind)[0], "nargs": "+"}
    if kind is bool:
        return {"type": _boolean}
    return {"type": _or_none(kind) if types.NoneType in allowed else kind}


def _or_none(kind: type):
    def read(text: str):
        return None if text.lower() == "none" else kind(text)

    read.__name__ = f"{kind.__name__} or none"  # argparse puts it into its message
    return read


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ArgumentTypeError(f"is {text!r}; expected true or false")
    return text.lower() == "true"
