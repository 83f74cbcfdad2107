"""Settings of a `GRPOConfig` as options of a command: `--beta 0.04`, `--gradient_checkpointing true`."""

import argparse
import types
import typing
from collections.abc import Iterable
from dataclasses import fields

from grpo_lab.config.settings import GRPOConfig, options


def add_settings(parser: argparse.ArgumentParser, names: Iterable[str], defaults: dict | None = None) -> None:
    """Give the parser one option a setting, each with its default in the help.

    names: settings of `GRPOConfig`.
    defaults: name -> what the help gives as its default, where the command's own differs from `GRPOConfig`'s.
    """
    usual = {field.name: field.default for field in fields(GRPOConfig)} | (defaults or {})
    kinds = {field.name: field.type for field in fields(GRPOConfig)}
    for name in names:
        parser.add_argument(f"--{name}", help=f"(default {usual[name]})", **_argument_type(kinds[name]))


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
        raise argparse.ArgumentTypeError(f"{text!r} is not a truth value; expected true or false")
    return text.lower() == "true"
