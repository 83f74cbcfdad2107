"""Options on the command line, such as `--beta 0.04`, or in a file in YAML or JSON, as their declarations say."""

import difflib
import re
import types
import typing
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from grpo_lab.base import Parser
from grpo_lab.base.checks import InputError
from grpo_lab.base.commands import as_option_text
from grpo_lab.base.option import OptionSpec, typed_option, union_members
from grpo_lab.config.settings import SETTINGS

METAVARS = {int: "N", float: "X", bool: "true|false", str: "NAME", Path: "FILE"}


class SettingsLoader(yaml.SafeLoader):
    """A YAML loader that also reads numbers such as `1e-08`, which Python and JSON write and YAML 1.1 reads as text."""


SettingsLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), [*"-+0123456789"]
)


def add_options(parser: ArgumentParser, specs: Iterable[OptionSpec]) -> None:
    """Add options to the parser of a command, each as it is declared, and each group under its heading.

    Their defaults are only named in the help: an option that was not typed may be set in the file of a run.
    """
    groups: dict[str, Any] = {"": parser}
    for spec in specs:
        if spec.group not in groups:
            groups[spec.group] = parser.add_argument_group(spec.group)
        flags = [f"--{name}" for name in (*spec.aliases, spec.name)]
        groups[spec.group].add_argument(*flags, dest=spec.name, help=_help_text(spec), **argparse_keywords(spec))


def read_settings(file: Path) -> dict:
    """Return names and values from a file in YAML or JSON; raise InputError if it holds no settings."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=SettingsLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError("config", file, problem=f"is {str(file)!r}, which is not YAML: {error}") from None
    if not isinstance(content, dict) or all(value is None for value in content.values()):
        raise InputError("config", str(file), "expected a file with lines such as `beta: 0.04`")
    return content


def option_actions(parser: Parser) -> dict:
    """Return the options of a parser that a file may set, by name."""
    return {name: action for name, action in parser.options_by_name.items() if name != "config"}


def option_words(content: dict, file: Path, parser: Parser) -> list[str]:
    """Return the settings of a file as words of a command line.

    A null becomes "none" if the setting may be None, and is ignored otherwise.

    Args:
        content: Names and values, as `read_settings` returns them.
        file: Path of the file, for error messages.
        parser: The parser that will read the words.

    Raises:
        InputError: for a name that is not an option of the parser.
    """
    actions = option_actions(parser) | {
        option.lstrip("-"): action for action in option_actions(parser).values() for option in action.option_strings
    }
    may_be_none = {name for name, setting in SETTINGS.items() if setting.may_be_none}
    may_be_none -= {"output_dir"}  # the command reads it as the name of a folder, and needs one
    words = []
    for name, value in content.items():
        if value is None and name not in may_be_none:
            continue  # the default holds; a null of another version of grpo_lab is ignored as well
        if name not in actions:
            close_names = difflib.get_close_matches(str(name), actions, n=1)
            suggestion = f"did you mean {close_names[0]}? Or," if close_names else "--help lists what there is;"
            otherwise = "if another version of grpo_lab wrote it, leave it out"
            origin = f"is {str(file)!r}, which has {name!r}"
            raise InputError("config", name, f"that is not known here; {suggestion} {otherwise}", problem=origin)
        if actions[name].nargs is None:
            # A file written by TRL stores "no tracker" as an empty list.
            text = value if not isinstance(value, list) else ",".join(map(str, value)) or "none"
            words.append(f"--{name}={text}")
        elif value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def argparse_keywords(spec: OptionSpec) -> dict[str, Any]:
    """Return the keywords of `add_argument` with which the values of an option are read.

    A list takes several words, or with `str | list[str]` one word with commas. A switch needs no word. The word "none"
    is None if the option may be None.
    """
    kinds = union_members(spec.type)
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    if kind is str and list[str] in kinds:
        metavar = spec.metavar or f"{METAVARS[str]}[,...]"
        return {"type": lambda text: text.split(",") if "," in text else text, "metavar": metavar}
    if typing.get_origin(kind) is list:
        (kind,) = typing.get_args(kind)
        return {"type": kind, "nargs": "+", "metavar": spec.metavar or METAVARS[kind]}

    def read(text: str):
        if spec.may_be_none and text.lower() == "none":
            return None
        if kind is bool and text.lower() not in ("true", "false"):
            raise ArgumentTypeError(f"{text!r} is neither true nor false")
        return text.lower() == "true" if kind is bool else kind(text)

    read.__name__ = kind.__name__ + " or none" * spec.may_be_none  # name in messages of argparse
    keywords = {"type": read, "metavar": spec.metavar or METAVARS[kind]}
    return keywords | {"nargs": "?", "const": True} if kind is bool else keywords


def _help_text(spec: OptionSpec) -> str:
    clauses = [spec.help_text]
    if spec.choices:
        clauses.append(f"one of {', '.join(spec.choices)}")
    if spec.read_if:
        clauses.append(f"read with {' or '.join(typed_option(*condition) for condition in spec.read_if.items())}")
    default = spec.default_text or as_option_text(spec.default)
    return f"{'; '.join(clauses)} (default: {default})".replace("%", "%%")
