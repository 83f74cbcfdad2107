"""The command `grpo-lab`, which runs the other commands: `grpo-lab train` is `python -m grpo_lab.train`.

Without a command's name it lists the commands.
"""

import argparse
import importlib.util
import os
import shutil
import sys

from grpo_lab.base import Parser, command, version_line, writable_folder
from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.base.files import LESSON_FOLDER, lesson_files
from grpo_lab.base.language import _, fill, language

COMMANDS = {
    "doctor": "what works on this machine, and which command fixes the rest",
    "lessons": "copy the notebooks into a folder of yours",
    "train": "train a model on a task of the course or of your own",
    "evaluate": "how good a model is on problems that it was not trained on",
    "chat": "talk to a model",
    "diagnose": "what looks wrong in the log of a run, ours or TRL's, and what to try",
    "plot": "curves of one or several runs as a picture",
    "models": "fetch a real language model: SmolLM2-135M, or a Qwen of 0.5B",
    "memory": "what a run takes of a device, known before it starts",
    "bench": "where the time of a step goes; speed and memory against TRL",
    "course": "for teachers: assignments, marking, and the proof that the marking is right",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the first argument names, with the other arguments; without one, list the commands."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in COMMANDS:
        return find_main(words[0])(words[1:])
    return list_commands(words)


def find_main(name: str):
    """Return the `main` function of a command."""
    if name == "lessons":
        return copy_lessons
    module = f"grpo_lab.{name}"
    spec = importlib.util.find_spec(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return importlib.import_module(f"{module}.__main__" if is_package else module).main


@command("grpo-lab")
def list_commands(arguments: list[str]) -> None:
    lines = (f"grpo-lab {name:10} {description}" for name, description in COMMANDS.items())
    epilog = "Each says more with --help, and is also `python -m grpo_lab.train` and so on, but for lessons."
    overview = "\n".join([*lines, "", epilog])
    parser = Parser(
        prog="grpo-lab",
        usage="grpo-lab COMMAND [options]",
        description=overview,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=COMMANDS, help=argparse.SUPPRESS)
    parser.parse_args(arguments)
    print(version_line(), "", overview, sep="\n")


@command("grpo-lab lessons")
def copy_lessons(arguments: list[str]) -> None:
    """Copy the notebooks, English and Chinese, into a folder, without overwriting anything.

    The environment variable LESSON_LANG chooses the language of the first lesson, as for `make lab`.
    """
    if chosen := os.environ.get("LESSON_LANG"):
        os.environ["GRPO_LAB_LANG"] = "zh_CN" if chosen.startswith("zh") else "en"
    parser = Parser(prog="grpo-lab lessons", description="Copy the notebooks into a folder of yours.")
    parser.add_argument("folder", type=writable_folder, metavar="DIR", help="nothing in it is overwritten")
    folder = parser.parse_args(arguments).folder
    names = lesson_files()
    if not names:
        raise InputFileError(f"{str(LESSON_FOLDER)!r} has no notebooks; install grpo-lab anew, or clone it")
    if existing := next((name for name in names if (folder / name).exists()), None):
        state = f"is {str(folder)!r}, which has {existing} already"
        raise InputError("folder", folder, "expected one without notebooks", problem=state)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(LESSON_FOLDER / name, folder / name)
    first = folder / ("zh" if language() == "zh_CN" else "") / "00_start_here.ipynb"
    print(_(fill("{0} files copied; begin with {1}", len(names), first)))


if __name__ == "__main__":
    sys.exit(main())
