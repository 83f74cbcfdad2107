"""Tests of how commands end: one line with the option for an error of the user, a traceback for a bug.

The ranges of all settings are tested in tests/config/test_settings.py. Here is one wrong option of each kind per
command, which writes nothing.
"""

import argparse
import contextlib
import errno
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from json import loads
from pathlib import Path

import pytest
import torch

import grpo_lab
from grpo_lab.__main__ import COMMANDS
from grpo_lab.__main__ import main as grpo_lab_command
from grpo_lab.base import Parser, Stopped, command, version_line, writable_file, writable_folder
from grpo_lab.base.checks import InputError, InputFileError, check_positive
from grpo_lab.base.commands import REPORT_BUG_HINT, TRACEBACK_HINT
from grpo_lab.models.folders import TINY
from grpo_lab.rewards.scoring import score_completions
from tests.support.fork import in_a_fork
from tests.support.refusals import refusal_of
from tests.support.scripts import load_script

# Files that may raise other exceptions than InputError: those report an inconsistency of grpo_lab or an exercise, or no
# user sees them.
BUGS_OF_OURS = {
    "base/option.py",
    "formulas/lines.py",
    "course/exercise.py",
    "course/exercises/__init__.py",
    "course/checking/judging.py",
    "course/checking/outcome.py",
    "course/checking/stand_ins.py",
    "course/grading/messages.py",
}
NAME = "python -m grpo_lab.example: error: "


def command_that(act, *options: str):
    """Return a command that calls `act` after it has read its options."""

    @command("grpo_lab.example")
    def main(arguments=None):
        parser = Parser(prog="python -m grpo_lab.example")
        for option in options:
            parser.add_argument(option)
        parser.parse_args(arguments)
        return act()

    return main


def raise_error(error: BaseException):
    """Return a function that raises the error in a file of another package."""
    names = {"error": error}
    exec(compile("def act():\n    raise error", "another/package.py", "exec"), names)
    return names["act"]


# ---- the message of an error


def test_error_line_names_the_option_as_it_is_typed():
    for option, argument, expected in [
        ("--epsilon", "epsilon", "--epsilon is -1; it must be positive"),
        ("--time-limit", "time_limit", "--time-limit is -1; it must be positive"),
        ("--model", "name", "--model is -1; it must be positive"),
        ("--other", "epsilon", "epsilon is -1; it must be positive"),  # --epsilon belonged to the command before
    ]:
        assert (
            refusal_of(command_that(lambda argument=argument: check_positive(argument, -1), option)) == NAME + expected
        )


def test_file_and_package_errors_are_one_line():
    for error, expected in [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.json"), "'a.json': No such file or directory"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            f"[Errno {errno.ENOSPC}] No space left on device {TRACEBACK_HINT}",
        ),
        (ConnectionError("the hub\n  is away"), "the hub is away"),
        (ModuleNotFoundError("No module", name="torchao"), f"the package torchao is not installed {TRACEBACK_HINT}"),
        (InputFileError("task", "a.jsonl", "no such file"), "task is 'a.jsonl'; no such file"),
    ]:
        assert refusal_of(command_that(raise_error(error))) == NAME + expected
    assert len(refusal_of(command_that(raise_error(InputError("said much " * 300))))) < 1300


def test_reward_error_in_a_command_is_one_line_with_the_users_file():
    def reward(completions, **kwargs):
        raise KeyError("answer")

    failed = refusal_of(command_that(lambda: score_completions([reward], ["a"], ["b"], [[1]], {})))
    line = reward.__code__.co_firstlineno + 1
    message = f"error: reward function 'reward' failed in test_commands.py, line {line}: KeyError: 'answer' "
    assert message in failed and failed.endswith(TRACEBACK_HINT)
    # A reward function without the parameters that it needs raises a TypeError.
    unfit = refusal_of(command_that(lambda: score_completions([lambda texts: [1.0]], ["a"], ["b"], [[1]], {})))
    assert "does not fit the batch: " in unfit


def test_a_bug_of_the_package_keeps_its_traceback_and_asks_to_be_reported(capsys):
    for act in [
        raise_error(KeyError("answer")),
        raise_error(ValueError("epsilon is -1; it must be positive")),  # a text like that of an InputError
        lambda: loads("{"),
        raise_error(ImportError("cannot import name 'kl_estimate'")),
        raise_error(ModuleNotFoundError("No module named 'grpo_lab.worlds'", name="grpo_lab.worlds")),
        lambda: check_positive("epsilon", "a"),  # a TypeError in a line of the package
        lambda: torch.ones(2) @ torch.ones(3),
    ]:
        with pytest.raises((KeyError, RuntimeError, TypeError, ValueError, ImportError)) as fault:
            command_that(act)([])
        assert (
            fault.value.__notes__ == [REPORT_BUG_HINT]
            and "grpo_lab.doctor" in REPORT_BUG_HINT
            and not capsys.readouterr().err
        )


def test_errors_of_the_caller_are_input_errors_everywhere_in_the_package():
    """Any other exception of the package is a bug, and would show a user a traceback."""
    package, plain = Path(grpo_lab.__file__).parent, re.compile(r"^ *raise (ValueError|TypeError)\(", re.MULTILINE)
    files = {path for path in package.rglob("*.py") if plain.search(path.read_text("utf-8"))}
    assert {path.relative_to(package).as_posix() for path in files} == BUGS_OF_OURS


def test_out_of_memory_error_names_the_planner():
    for error in [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB. Of the allocated"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 9 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ]:
        line = refusal_of(command_that(raise_error(error)))
        assert "error: out of memory (" in line and "`python -m grpo_lab.memory`" in line


def test_traceback_is_printed_if_the_variable_asks_for_it(monkeypatch, capsys):
    monkeypatch.setenv("GRPO_LAB_TRACEBACK", "1")
    assert command_that(lambda: check_positive("epsilon", -1), "--epsilon")([]) == 2
    traceback = capsys.readouterr().err
    assert traceback.startswith("Traceback") and traceback.endswith(f"{NAME}--epsilon is -1; it must be positive\n")


# ---- exit codes and closed pipes


def test_exit_code_of_a_command_is_that_of_main_or_of_the_signal(capsys):
    for result, code in [(None, 0), (0, 0), (1, 1)]:
        assert command_that(lambda result=result: result)([]) == code
    for stop, code, message in [
        (KeyboardInterrupt(), 130, "stopped"),
        (Stopped("saved; go on with --resume"), 130, "saved; go on with --resume"),
        (Stopped("saved", 143), 143, "saved"),
    ]:
        assert command_that(raise_error(stop))([]) == code
        assert capsys.readouterr().err == f"\n{message}\n"


def run(code: str, **settings) -> subprocess.Popen:
    lines = f"import sys\nfrom grpo_lab.base import Parser, command\n@command('x')\ndef main(_=None):\n    {code}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    return subprocess.Popen([sys.executable, "-c", f"{lines}\nsys.exit(main())"], **pipes, **settings)


def test_a_closed_pipe_ends_a_command_without_an_error():
    # "second" is still in Python's buffer when the reading program ends.
    process = run("print('first', flush=True); sys.stdin.read(); print('second')", stdin=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == "" and process.wait() == 141
    process.stderr.close()


# ---- options


def test_a_full_disk_is_found_at_once_and_a_file_that_is_there_is_left_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "old.json").write_text("old", encoding="utf-8")
    for name in ("old.json", "new.json"):
        assert writable_file(str(tmp_path / name)) == tmp_path / name
    assert writable_folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b" and writable_folder(str(tmp_path))
    assert os.listdir(tmp_path) == ["old.json"] and (tmp_path / "old.json").read_text(encoding="utf-8") == "old"

    def full(**where):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    for kind in (writable_file, writable_folder):
        with pytest.raises(argparse.ArgumentTypeError, match="that can be written .*: No space left on device"):
            kind(str(tmp_path / "x"))


# ---- all commands


def test_grpo_lab_command_lists_all_commands_and_passes_their_arguments(capsys, monkeypatch):
    package = Path(grpo_lab.__file__).parent
    modules = {path.parent.name for path in package.glob("*/__main__.py")}
    modules |= {path.stem for path in package.glob("*.py") if "@command(" in path.read_text(encoding="utf-8")}
    assert set(COMMANDS) == modules - {"__main__"} | {"lessons"}
    assert grpo_lab_command([]) == 0
    overview = capsys.readouterr().out
    assert version_line() in overview and all(f"grpo-lab {name} " in overview for name in COMMANDS)
    with pytest.raises(SystemExit):
        grpo_lab_command(["--help"])
    assert overview.partition("\n\n")[2].strip() in capsys.readouterr().out
    assert version_line().startswith(f"grpo_lab {grpo_lab.__version__}, torch {version('torch')}")
    for called, usage in (("bin/grpo-lab", "grpo-lab "), ("train.py", "python -m grpo_lab.")):
        monkeypatch.setattr(sys, "argv", [called])
        for name in COMMANDS:
            for option, expected in (("--version", version_line()), ("--help", f"usage: {usage}{name}")):
                with pytest.raises(SystemExit) as stop:
                    grpo_lab_command([name, option])
                overview = " ".join(capsys.readouterr().out.split())
                assert stop.value.code == 0 and (expected in overview or name == "lessons")


def test_lessons_command_copies_lessons_and_overwrites_nothing(tmp_path, capsys):
    mine = tmp_path / "mine"
    assert grpo_lab_command(["lessons", str(mine)]) == 0
    notebooks = Path(grpo_lab.__file__).parents[1] / "notebooks"
    for path in notebooks.glob("*.ipynb"):
        assert (mine / path.name).read_bytes() == path.read_bytes()
    assert list((mine / "assignments").glob("*.ipynb")) and list((mine / "runs").glob("*.json"))
    assert (mine / "zh" / "00_start_here.ipynb").is_file() and list((mine / "zh" / "assignments").glob("*.ipynb"))
    assert not list(mine.rglob("*.py")) and "00_start_here.ipynb" in capsys.readouterr().out
    (mine / "00_start_here.ipynb").write_text("my work", encoding="utf-8")
    assert "which has 00_start_here.ipynb already; expected" in refusal_of(grpo_lab_command, "lessons", str(mine))
    assert (mine / "00_start_here.ipynb").read_text(encoding="utf-8") == "my work"


def imported_by_help_and_a_wrong_option() -> set[str]:
    """Return what is imported for them, of the package and transformers, in a process that has imported neither."""
    dependents = ("grpo_lab", "transformers", "trl", "peft", "accelerate", "datasets", "liger_kernel", "tests")
    for name in list(sys.modules):
        if name.split(".")[0] in dependents:
            del sys.modules[name]
    import grpo_lab.train

    assert grpo_lab.train.main
    from grpo_lab.__main__ import main

    commands = ["train --help", "train --max_step 3", "evaluate --help", "chat --help", "doctor --help"]
    for words in map(str.split, commands):
        with contextlib.suppress(SystemExit):
            main(words)
    return {name for name in sys.modules if name.split(".")[0] in dependents}


def test_help_and_a_wrong_option_wait_for_no_transformers():
    """Importing transformers takes seconds."""
    imported = in_a_fork(imported_by_help_and_a_wrong_option)
    assert "grpo_lab.train" in imported
    assert "transformers" not in imported


WRONG_COMMAND_LINES = Path(__file__).with_name("wrong_commands.txt").read_text(encoding="utf-8").splitlines()
WRONG_COMMANDS = dict(line.split(" => ") for line in WRONG_COMMAND_LINES if not line.startswith("#"))


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # so that a test sees files that a refused command has written
    (tmp_path / "file").write_text("", encoding="utf-8")
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "work.txt").write_text("an evening's work", encoding="utf-8")
    return tmp_path


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


script = functools.cache(load_script)


def refusal(words: list[str]) -> str:
    """Return the one line of the error, after checking that it begins with the name of the command or script."""
    if words and words[0].endswith(".py"):
        line, name = refusal_of(script(words[0]).main, *words[1:]), f"python {words[0]}"
    else:
        line, name = refusal_of(grpo_lab_command, *words), "python -m grpo_lab." if words[0] in COMMANDS else "grpo-lab"
    assert line.startswith(name) or line.startswith("grpo-lab lessons"), line
    return line


def test_wrong_options_end_in_one_line_with_the_expected_values(workspace):
    before = everything(workspace)
    for typed, expected in WRONG_COMMANDS.items():
        line = refusal([word.format(tmp=workspace.as_posix()) for word in shlex.split(typed)])
        assert expected in line and len(line) < 1000, typed
        assert everything(workspace) == before, typed


def test_commands_name_the_damaged_file_of_a_model(workspace, capfd):
    for number, (typed, file, content, expected) in enumerate([
        ("evaluate --n 1 --model", "config.json", "{", ", whose config.json is damaged; download it again"),
        ("evaluate --n 1 --model", "tokenizer.json", "{}", ", whose tokenizer cannot be loaded"),
        ("train --output_dir run --model", "model.safetensors", "cut short", "download"),
    ]):  # fmt: skip
        folder = shutil.copytree(TINY, workspace / f"damaged{number}")
        (folder / file).write_text(content, encoding="utf-8")
        assert grpo_lab_command([*typed.split(), str(folder)]) == 2
        *_, line = capfd.readouterr().err.splitlines()  # the last line, after what was printed before loading
        assert (
            line.startswith(f"python -m grpo_lab.{typed.split()[0]}: error: ")
            and expected in line
            and "damaged" in line
        )
        assert not (workspace / "run").exists()
