"""The options of the commands that are not settings, and how all options are typed or read from a file.

Each option is declared once, and `COMMAND_OPTIONS` holds the declarations. Those of a task, of its data and of LoRA are
declared where they are read, all others here. `add_options` makes the command line from them.

A file, in YAML or JSON, may name only code of this package. The user types all other names: a task, a reward, a tool,
an environment or a formula that a file names would run as code on the user's machine.
"""

import difflib
import re
import types
import typing
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpo_lab.base import Parser, shell_line
from grpo_lab.base.checks import InputError
from grpo_lab.base.commands import as_option_text
from grpo_lab.base.files import SETTINGS_FILE
from grpo_lab.base.option import (
    NamedCode,
    OptionSpec,
    default_values,
    option,
    option_specs,
    union_members,
)
from grpo_lab.config import SETTINGS
from grpo_lab.config.lora import LORA_OPTIONS
from grpo_lab.config.settings import without_default_tool_timeout
from grpo_lab.rewards.named import REWARD_FUNCTIONS, short_name
from grpo_lab.sandbox.python import PYTHON_TOOL
from grpo_lab.task_spec import TASK_OPTIONS
from grpo_lab.tasks import TASKS
from grpo_lab.tasks.records import FILE_SUFFIXES

OUR_ENGINE, TRL = "grpo_lab", "trl"  # the engines
WITH_TRL = {"engine": TRL}
WITH_VLLM = {"use_vllm": True}
WITH_SERVER = {"vllm_mode": "server"}


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """The options that name tools or an environment."""

    tools: list[str] | None = option(
        None,
        "what the model may call: FILE:function, of your own, with types and a docstring that says what each argument "
        "is; python, which runs a program in a sandbox; sqlite:FILE, which asks a database, read only",
        named_code=NamedCode.IMPORT,
        metavar="TOOL",
        passed_to_evaluate=True,
    )
    environment: str | None = option(
        None,
        "the environment of an episode: reset(**row) begins it, get_reward(), if any, rewards it, and the other public "
        "methods are tools",
        named_code=NamedCode.IMPORT,
        metavar="FILE:CLASS",
        passed_to_evaluate=True,
    )


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `grpo-lab train` on the model, on the file of options, and on the length of the run."""

    model: str = option(
        "tiny",
        '"tiny", "smollm2", "qwen", "auto", a folder or a hub id',
        named_code=NamedCode.PATH,
        metavar="MODEL",
    )
    # No file may hold this one: `option_actions` leaves it out.
    config: Path | None = option(
        None,
        f"take options from a YAML file, or from the {SETTINGS_FILE} in the folder of a run; those typed here win",
        named_code=NamedCode.NOTHING,
    )
    dry_run: bool = option(
        False, "say what the run would do, all that is in its way, and the first prompt as the model sees it; and stop"
    )
    num_train_epochs: float | None = option(
        None,
        "how often each problem of the training is sampled, instead of max_steps",
        above=0,
        converted_to="max_steps",
    )
    warmup_ratio: float | None = option(
        None,
        "the share of the steps in which the learning rate rises, instead of warmup_steps",
        at_least=0,
        at_most=1,
        converted_to="warmup_steps",
    )


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options that choose the engine of a run and what it trains; those of LoRA are in `config/lora.py`."""

    engine: str = option(
        OUR_ENGINE, f"whose loop trains; {OUR_ENGINE} is that of the lessons", group="engine", choices=(OUR_ENGINE, TRL)
    )
    use_peft: bool = option(False, "train only LoRA adapters; the weights of the model are frozen")


@dataclass(frozen=True, kw_only=True)
class TrlOptions:
    """The options of what TRL's trainer can do and our own loop cannot."""

    fsdp: bool = option(
        False, "under torchrun, FSDP2 divides weights, gradients and moments", group="engine", read_if=WITH_TRL
    )
    use_vllm: bool = option(False, "vLLM samples", read_if=WITH_TRL)


def vllm_option(read_if: dict[str, Any], **declaration: Any) -> Any:
    """Declare an option of vLLM whose meaning and default are TRL's."""
    return option(None, "as in TRL", read_if=read_if, default_text="TRL's", **declaration)


@dataclass(frozen=True, kw_only=True)
class VllmOptions:
    """The options of sampling with vLLM, under TRL's names; TRL has their defaults."""

    vllm_mode: str | None = option(
        None,
        "on the GPUs that train, or on its own",
        group="engine",
        choices=("colocate", "server"),
        read_if=WITH_VLLM,
        default_text="TRL's, colocate",
    )
    vllm_server_base_url: str | None = vllm_option(WITH_SERVER, named_code=NamedCode.NOTHING)
    vllm_server_host: str | None = vllm_option(WITH_SERVER, named_code=NamedCode.NOTHING)
    vllm_server_port: int | None = vllm_option(WITH_SERVER)
    vllm_server_timeout: float | None = vllm_option(WITH_SERVER)
    vllm_group_port: int | None = vllm_option(WITH_SERVER)
    vllm_gpu_memory_utilization: float | None = vllm_option(WITH_VLLM)
    vllm_max_model_length: int | None = vllm_option(WITH_VLLM)
    vllm_tensor_parallel_size: int | None = vllm_option(WITH_VLLM)
    vllm_importance_sampling_correction: bool | None = vllm_option(WITH_VLLM)
    vllm_importance_sampling_mode: str | None = vllm_option(WITH_VLLM, named_code=NamedCode.NOTHING)
    vllm_importance_sampling_clip_max: float | None = vllm_option(WITH_VLLM)


TOOL_OPTIONS = option_specs(ToolOptions)
VLLM_OPTIONS = option_specs(VllmOptions)
ENGINE_OPTIONS = option_specs(EngineOptions) | LORA_OPTIONS | option_specs(TrlOptions) | VLLM_OPTIONS
COMMAND_OPTIONS = option_specs(TrainOptions) | TASK_OPTIONS | TOOL_OPTIONS | ENGINE_OPTIONS
# The options that an evaluation takes over from a run, with their defaults.
EVALUATE_OPTION_DEFAULTS = default_values(
    {name: spec for name, spec in COMMAND_OPTIONS.items() if spec.passed_to_evaluate}
)
# Options that are converted to steps once the number of rows is known, and the setting that each replaces.
STEP_SETTING_OF_OPTION = {
    name: spec.converted_to for name, spec in COMMAND_OPTIONS.items() if spec.converted_to is not None
}
METAVARS = {int: "N", float: "X", bool: "true|false", str: "NAME", Path: "FILE"}


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
        conditions = [f"--{name}" if value is True else f"--{name} {value}" for name, value in spec.read_if.items()]
        clauses.append(f"read with {' or '.join(conditions)}")
    default = spec.default_text or as_option_text(spec.default)
    return f"{'; '.join(clauses)} (default: {default})".replace("%", "%%")


def read_settings(file: Path) -> dict:
    """Return names and values from a file in YAML or JSON; raise InputError if it holds no settings."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=SettingsLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError("config", file, problem=f"is {str(file)!r}, which is not YAML: {error}") from None
    if not isinstance(content, dict) or all(value is None for value in content.values()):
        raise InputError("config", str(file), "expected a file with lines such as `beta: 0.04`")
    return without_default_tool_timeout(content) if file.name == SETTINGS_FILE else content


class SettingsLoader(yaml.SafeLoader):
    """A YAML loader that also reads numbers such as `1e-08`, which Python and JSON write and YAML 1.1 reads as text."""


SettingsLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), [*"-+0123456789"]
)


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
        flag.lstrip("-"): action for action in option_actions(parser).values() for flag in action.option_strings
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


def option_actions(parser: Parser) -> dict:
    """Return the options of a parser that a file may set, by name."""
    return {name: action for name, action in parser.options_by_name.items() if name != "config"}


def check_no_code_named(options: dict[str, Any], file: Path) -> None:
    """Raise InputError if a file of settings names code to import, or a network path: the user has to type these.

    Otherwise the author of the file could run code on this machine, through a task, a reward, a tool or a formula; and
    Windows would send the user's login to the host of a network path. A file may name the rewards and tasks of this
    package, and files of problems.

    options: The options in the file, without those that were also typed.
    file: The file of settings, for the error message.
    """
    for name, words in options_naming_code(options).items():
        expected = "from a file only names of this package and problems on this machine are taken, since others may "
        expected += "run code"
        if named_code(name) is NamedCode.PATH:
            expected = "from a file no network path is taken, since Windows would send your login to that host"
        expected += f"; if you trust it, type {shell_line(words)}"
        raise InputError(name, options[name], expected, problem=f"is {options[name]!r:.200} in {str(file)!r}")


def options_naming_code(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the options that name code, or a network path, and have to be typed: for each, its words when typed.

    They come in the order of their declarations; after them, those without one.
    """
    words_by_option = {}
    declared = [name for name in (*COMMAND_OPTIONS, *SETTINGS) if name in options]
    for name in dict.fromkeys((*declared, *options)):
        value = options[name]
        if not MAY_BE_IN_FILE[named_code(name)](value):
            words_by_option[name] = [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words_by_option


def named_code(name: str) -> NamedCode:
    """Return the kind of code that an option or a setting can name, as its declaration says.

    A name without a declaration counts as one that imports.
    """
    spec = COMMAND_OPTIONS.get(name) or SETTINGS.get(name)
    return NamedCode.IMPORT if spec is None else spec.named_code


def _are_our_rewards(value: Any) -> bool:
    if not value:
        return True
    names = value if isinstance(value, list) else [value]
    return all(isinstance(name, str) and short_name(name) in REWARD_FUNCTIONS for name in names)


def _is_safe_task(name: Any) -> bool:
    """Return True for a task that a file may name because it runs no code of a user.

    These are the tasks of the package, a gym generator with plain options, and problems on this machine.
    """
    if not isinstance(name, str):
        return name is None
    if name in TASKS or re.fullmatch(r"gym:\w+(?::[\w=.,+\- \[\]]*)?", name):
        return True
    path = name.removeprefix("gsm8k:")
    if _is_network_path(path):
        return False
    is_data = path != name or name.endswith(FILE_SUFFIXES) or Path(path).is_dir()
    return is_data and Path(path).exists()


def _is_network_path(value: Any) -> bool:
    """Return True for a path such as \\\\host\\share; looking for it lets Windows log in to that host."""
    return any(re.match(r"\\|/[\\/]", str(path)) for path in (value if isinstance(value, list) else [value]))


# For each kind of code, a function that returns True for a value that a file may hold.
MAY_BE_IN_FILE: dict[NamedCode, Callable[[Any], bool]] = {
    NamedCode.NOTHING: lambda value: True,
    NamedCode.PATH: lambda value: not _is_network_path(value),
    NamedCode.REWARDS: _are_our_rewards,
    NamedCode.TASK: _is_safe_task,
    NamedCode.FORMULA: lambda name: ":" not in str(name),
    NamedCode.IMPORT: lambda value: value in (None, [PYTHON_TOOL]),  # this tool runs in a sandbox
}
