"""The rule on the code that a file of settings may name: only that of this package. The user types all other names.

A task, a reward, a tool, an environment or a formula that a file names would run as code on the user's machine.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_lab.base import shell_line
from grpo_lab.base.checks import InputError
from grpo_lab.base.option import NamedCode
from grpo_lab.command_options import COMMAND_OPTIONS
from grpo_lab.config import SETTINGS
from grpo_lab.rewards.named import REWARD_FUNCTIONS, short_name
from grpo_lab.sandbox.python import PYTHON_TOOL
from grpo_lab.tasks import TASKS
from grpo_lab.tasks.records import FILE_SUFFIXES


def check_no_code_named(options: dict[str, Any], file: Path) -> None:
    """Raise InputError if a file of settings names code to import, which the user has to type instead.

    Otherwise the author of the file could run code on this machine, through a task, a reward, a tool or a formula. A
    file may name the rewards and tasks of this package, and files of problems.

    options: The options in the file, without those that were also typed.
    file: The file of settings, for the error message.
    """
    for option, words in options_naming_code(options).items():
        expected = "from a file only names of this package and problems on this machine are taken, since others may "
        expected += f"run code; if you trust it, type {shell_line(words)}"
        raise InputError(option, options[option], expected, problem=f"is {options[option]!r:.200} in {str(file)!r}")


def options_naming_code(options: dict[str, Any]) -> dict[str, list[str]]:
    """Return the options that name code and so have to be typed: for each, its words on a command line.

    They come in the order of their declarations; after them, those without one.
    """
    words_by_option = {}
    declared = [name for name in (*COMMAND_OPTIONS, *SETTINGS) if name in options]
    for option in dict.fromkeys((*declared, *options)):
        value = options[option]
        if not MAY_BE_IN_FILE[named_code(option)](value):
            words_by_option[option] = [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return words_by_option


def named_code(name: str) -> NamedCode:
    """Return the kind of code that an option or a setting can name, as its declaration says.

    A name without a declaration counts as one that imports.
    """
    if name in COMMAND_OPTIONS:
        return COMMAND_OPTIONS[name].named_code
    if name in SETTINGS:
        return SETTINGS[name].named_code
    return NamedCode.IMPORT


def _are_our_rewards(value: Any) -> bool:
    if not value:
        return True
    names = value if isinstance(value, list) else [value]
    return all(isinstance(name, str) and short_name(name) in REWARD_FUNCTIONS for name in names)


def _is_safe_task(name: Any) -> bool:
    """Return True for a task that a file may name because it runs no code of a user.

    These are the tasks of the package, a gym generator with plain options, and problems on this machine. A network
    path such as \\\\host\\share is refused, since Windows would send the user's login to that host.
    """
    if not isinstance(name, str):
        return name is None
    if name in TASKS or re.fullmatch(r"gym:\w+(?::[\w=.,+\- \[\]]*)?", name):
        return True
    path = name.removeprefix("gsm8k:")
    is_remote = re.match(r"\\|/[\\/]", path)
    is_data = path != name or name.endswith(FILE_SUFFIXES) or Path(path).is_dir()
    return not is_remote and is_data and Path(path).exists()


def _is_our_formula(name: Any) -> bool:
    return ":" not in str(name)


def _imports_nothing(value: Any) -> bool:
    """Return True for the default, and for `PYTHON_TOOL`, which runs in a sandbox."""
    return value in (None, [PYTHON_TOOL])


# For each kind of code, a function that returns True for a value that a file may hold.
MAY_BE_IN_FILE: dict[NamedCode, Callable[[Any], bool]] = {
    NamedCode.NOTHING: lambda value: True,
    NamedCode.REWARDS: _are_our_rewards,
    NamedCode.TASK: _is_safe_task,
    NamedCode.FORMULA: _is_our_formula,
    NamedCode.IMPORT: _imports_nothing,
}
