"""Settings of a `GRPOConfig` from the command line, such as `--beta 0.04`, or from a file in YAML or JSON."""

import difflib
import re
import types
import typing
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path

import yaml

from grpo_lab.base import Parser
from grpo_lab.base.checks import InputError
from grpo_lab.base.parser import as_option_text
from grpo_lab.base.setting import SettingSpec, union_members
from grpo_lab.config.defaults import SIZE_DEPENDENT_SETTINGS
from grpo_lab.config.settings import SETTINGS

ALIASES = {"loss_type": ("--loss",)}
METAVARS = {int: "N", float: "X", bool: "true|false", str: "NAME"}


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
            keywords = {"dest": spec.name, "help": _help(spec)} | argparse_type(spec.type)
            groups[group_title].add_argument(*flags, **keywords)
    return parser


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


def _help(setting: SettingSpec) -> str:
    sentences = [setting.help_text]
    if choices := setting.choices:
        sentences.append(f"one of {', '.join(choices)}")
    default = as_option_text(setting.default)
    if setting.name in SIZE_DEPENDENT_SETTINGS:
        default = "the task's" if setting.name == "max_completion_length" else "by the model's size"
    return f"{'; '.join(filter(None, sentences))} (default: {default})".strip().replace("%", "%%")


def argparse_type(annotation) -> dict:
    """Return the keywords with which argparse reads a setting of this type; "none" is read as None."""
    kinds = union_members(annotation)
    kind = next(option for option in kinds if option is not types.NoneType)
    if list[str] in kinds:
        return {"type": lambda text: text.split(",") if "," in text else text, "metavar": f"{METAVARS[kind]}[,...]"}
    if typing.get_origin(kind) is list:
        (kind,) = typing.get_args(kind)
        return {"type": kind, "nargs": "+", "metavar": METAVARS[kind]}

    def read(text: str):
        if text.lower() == "none" and types.NoneType in kinds:
            return None
        if kind is bool and text.lower() not in ("true", "false"):
            raise ArgumentTypeError(f"{text!r} is neither true nor false")
        return text.lower() == "true" if kind is bool else kind(text)

    read.__name__ = kind.__name__ + " or none" * (types.NoneType in kinds)  # name in messages of argparse
    return {"type": read, "metavar": METAVARS[kind]}
