"""Options and settings as declared, on the command line, such as `--beta 0.04`, or in a file in YAML or JSON."""

import difflib
import re
import types
import typing
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from grpo_lab.base import Parser
from grpo_lab.base.checks import InputError
from grpo_lab.base.option import OptionSpec, typed_option
from grpo_lab.base.parser import as_option_text
from grpo_lab.base.setting import SettingSpec, union_members
from grpo_lab.config.defaults import SIZE_DEPENDENT_SETTINGS
from grpo_lab.config.settings import SETTINGS

ALIASES = {"loss_type": ("--loss",)}
METAVARS = {int: "N", float: "X", bool: "true|false", str: "NAME", Path: "FILE"}


class SettingsLoader(yaml.SafeLoader):
    """A YAML loader that also reads numbers such as `1e-08`, which Python and JSON write and YAML 1.1 reads as text."""


SettingsLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), [*"-+0123456789"]
)


def settings_parser(command: str, names: Iterable[str], required: str = "") -> Parser:
    """Return the parser of a command, with one option per setting; its result holds only options that are given.

    Args:
        command: Name of the module of the command, such as "grpo_lab.train".
        names: Names of the settings that become options.
        required: Options that the command needs, as they appear in the first line of its help.
    """
    usage = " ".join(["%(prog)s", required, "[options]"]).replace("  ", " ")
    parser = Parser(prog=f"python -m {command}", usage=usage, argument_default=SUPPRESS)
    option_names = set(names)
    group_title = ""
    groups = {}
    for spec in SETTINGS.values():
        group_title = spec.group or group_title
        if spec.name in option_names:
            if group_title not in groups:
                groups[group_title] = parser.add_argument_group(group_title)  # shown after the command's own options
            flags = (*ALIASES.get(spec.name, ()), f"--{spec.name}")
            keywords = {"dest": spec.name, "help": _setting_help(spec)} | argparse_keywords(spec.type)
            groups[group_title].add_argument(*flags, **keywords)
    return parser


def add_options(parser: ArgumentParser, specs: Iterable[OptionSpec]) -> None:
    """Add options to the parser of a command, each as it is declared, and each group under its heading.

    Their defaults are only named in the help: an option that was not typed may be set in the file of a run.
    """
    groups: dict[str, Any] = {"": parser}
    for spec in specs:
        if spec.group not in groups:
            groups[spec.group] = parser.add_argument_group(spec.group)
        flags = [f"--{name}" for name in (*spec.aliases, spec.name)]
        keywords = {"dest": spec.name, "help": _option_help(spec)} | argparse_keywords(spec.type, reads_none=False)
        if spec.metavar is not None:
            keywords["metavar"] = spec.metavar
        if spec.choices:
            keywords |= {"choices": spec.choices, "metavar": None}  # argparse shows the choices
        if spec.type is bool:
            keywords |= {"nargs": "?", "const": True}
        groups[spec.group].add_argument(*flags, **keywords)


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
    may_be_none -= {"output_dir"}
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


def _option_help(spec: OptionSpec) -> str:
    text = spec.help_text
    if spec.needs:
        *_, (name, value) = spec.needs.items()  # the last one itself needs those before it
        text = f"with {typed_option(name, value)}: {text}"
    default = spec.default_text
    if not default and spec.default is not None and spec.default is not False:
        default = as_option_text(spec.default)
    return (f"{text} (default: {default})" if default else text).replace("%", "%%")


def _setting_help(spec: SettingSpec) -> str:
    sentences = [spec.help_text]
    if choices := spec.choices:
        sentences.append(f"one of {', '.join(choices)}")
    default = as_option_text(spec.default)
    if spec.name in SIZE_DEPENDENT_SETTINGS:
        default = "the task's" if spec.name == "max_completion_length" else "by the model's size"
    return f"{'; '.join(filter(None, sentences))} (default: {default})".strip().replace("%", "%%")


def argparse_keywords(annotation, reads_none: bool = True) -> dict[str, Any]:
    """Return the keywords of `add_argument` for a value of this type.

    reads_none: Whether "none" is read as None, if the type allows None.
    """
    kinds = union_members(annotation)
    kind = next(option for option in kinds if option is not types.NoneType)
    reads_none = reads_none and types.NoneType in kinds
    if kind is str and list[str] in kinds:
        return {"type": lambda text: text.split(",") if "," in text else text, "metavar": f"{METAVARS[kind]}[,...]"}
    if typing.get_origin(kind) is list:
        (kind,) = typing.get_args(kind)
        return {"type": kind, "nargs": "+", "metavar": METAVARS[kind]}

    def read(text: str):
        if reads_none and text.lower() == "none":
            return None
        if kind is bool and text.lower() not in ("true", "false"):
            raise ArgumentTypeError(f"{text!r} is neither true nor false")
        return text.lower() == "true" if kind is bool else kind(text)

    read.__name__ = kind.__name__ + " or none" * reads_none  # name in messages of argparse
    return {"type": read, "metavar": METAVARS[kind]}
