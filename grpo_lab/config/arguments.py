"""Settings of a `GRPOConfig` as options of a command: `--beta 0.04`, `--gradient_checkpointing true`."""

import argparse
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, fields

from grpo_lab.config.settings import GRPOConfig, options


def add_settings(parser: argparse.ArgumentParser, names: Iterable[str], defaults: dict | None = None) -> None:
    """One option a setting, each with its default in the help.

    names: settings of `GRPOConfig`.
    defaults: name -> what the help gives as its default, where the command's own differs from `GRPOConfig`'s.
    """
    by_name = {field.name: field for field in fields(GRPOConfig)}
    for name in names:
        field = by_name[name]
        usual = None if field.default is MISSING else field.default
        default = (defaults or {}).get(name, usual)
        parser.add_argument(f"--{name}", help=f"(default {default})", **_argument_type(field.type))


def _argument_type(annotation) -> dict:
    """How argparse reads a setting: bool as true/false, list[float] as numbers, "none" where None is allowed."""
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
        raise argparse.ArgumentTypeError(f"{text!r}; allowed are true and false")
    return text.lower() == "true"
