"""Commands end alike: what is the user's to mend is one line with the option's name, a fault of ours a traceback."""

import argparse
import errno
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import grpo_lab
from grpo_lab.__main__ import COMMANDS
from grpo_lab.__main__ import main as list_commands
from grpo_lab.checks import check_positive
from grpo_lab.commands import Parser, Stopped, command, version_line, writable_file, writable_folder
from grpo_lab.commands.errors import FAULT_OF_OURS, WHERE
from grpo_lab.rewards.scoring import score_completions
from tests.support.refused import refused

PACKAGE = Path(grpo_lab.__file__).parent


def made_of(act, *options: str):
    """A command that does this after it has read its options."""

    @command("grpo_lab.example")
    def main(arguments=None):
        parser = Parser(prog="python -m grpo_lab.example")
        for option in options:
            parser.add_argument(option)
        parser.parse_args(arguments)
        return act()

    return main


def raises(error: BaseException):
    """As a line of another package does."""
    names = {"error": error}
    exec(compile("def act():\n    raise error", "another/package.py", "exec"), names)
    return names["act"]


# ---- what is said of an error


@pytest.mark.parametrize(
    ("option", "argument", "want"),
    [
        ("--epsilon", "epsilon", "--epsilon is -1; it must be positive"),
        ("--time-limit", "time_limit", "--time-limit is -1; it must be positive"),
        ("folder", "folder", "folder is -1; it must be positive"),
        ("--model", "name", "--model is -1; it must be positive"),
        ("--other", "epsilon", "epsilon is -1; it must be positive"),
        ("--eps", "epsilon", "epsilon is -1; it must be positive"),
        ("--beta", "beta=0.1 with epsilon=2", "--beta 0.1 with epsilon=2 is -1; it must be positive"),
    ],
)
def test_an_error_names_the_option_as_it_is_written(option, argument, want):
    main = made_of(lambda: check_positive(argument, -1), option)
    given = [] if option.startswith("-") else ["DIR"]
    assert refused(main, *given) == f"python -m grpo_lab.example: error: {want}"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("Go on with resume_from_checkpoint=True.", "Go on with --resume_from_checkpoint true."),
        ("Take precision='bf16', or beta=0.04.", "Take --precision bf16, or --beta 0.04."),
        ("load_policy(..., precision='bf16')", "load_policy(..., precision='bf16')"),
        ("(see there) precision=None", "(see there) --precision none"),
        ("in precision='a b'", "in --precision 'a b'"),
        ("it has epsilon=0.2", "it has epsilon=0.2"),
        ("num_generations = 7", "num_generations = 7"),
    ],
)
def test_what_to_do_is_said_in_words_of_the_shell(text, want, capsys):
    options = ("--resume_from_checkpoint", "--precision", "--beta", "--num_generations")
    assert made_of(raises(Stopped(text)), *options)([]) == 130
    assert capsys.readouterr().err == f"\n{want}\n"


def test_the_options_of_one_command_are_not_those_of_the_next():
    assert "error: --epsilon is" in refused(made_of(lambda: check_positive("epsilon", -1), "--epsilon"))
    assert "error: epsilon is" in refused(made_of(lambda: check_positive("epsilon", -1)))


def test_a_script_is_called_by_its_name_and_what_it_raises_is_on_purpose():
    @command("notebooks/build.py")
    def main(arguments=None):
        raise ValueError("timeout is 0; it must be positive")

    assert refused(main) == "python notebooks/build.py: error: timeout is 0; it must be positive"


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.json"), "'a.json': No such file or directory"),
        (OSError(errno.ENOSPC, "No space left on device"), f"[Errno {errno.ENOSPC}] No space left on device {WHERE}"),
        (ValueError("of another\n  package"), f"of another package {WHERE}"),
        (ImportError("no torchao"), f"no torchao {WHERE}"),
        (ValueError(), f"ValueError {WHERE}"),
        (ValueError(f"token {'a' * 900} is long"), f"token {'a' * 20}...{'a' * 20} is long {WHERE}"),
    ],
)
def test_a_file_a_package_or_a_value_that_is_wrong_is_one_line_wherever_it_was_noticed(error, want):
    assert refused(made_of(raises(error))) == f"python -m grpo_lab.example: error: {want}"


def test_of_a_very_long_message_its_beginning_and_its_end_are_said():
    line = refused(made_of(raises(ValueError("epsilon: " + "said much " * 300 + "and wrong")), "--epsilon"))
    assert "error: --epsilon: said much" in line and line.endswith(f"said much and wrong {WHERE}") and len(line) < 1300


def test_what_the_package_raises_on_purpose_is_for_the_user():
    def reward(completions, **kwargs):
        raise KeyError("answer")

    failed = refused(made_of(lambda: score_completions([reward], ["a"], ["b"], [[1]], {})))
    assert "error: reward function 'reward' failed: KeyError: 'answer' " in failed and failed.endswith(WHERE)
    unfit = refused(made_of(lambda: score_completions([lambda texts: [1.0]], ["a"], ["b"], [[1]], {})))  # a TypeError
    assert "does not fit the batch: " in unfit and not unfit.endswith(WHERE)


@pytest.mark.parametrize(
    "act",
    [
        raises(KeyError("answer")),
        raises(AssertionError()),
        raises(RuntimeError("mat1 and mat2 shapes cannot be multiplied")),
        raises(TypeError("'NoneType' object is not callable")),
        lambda: check_positive("epsilon", "a"),  # a comparison that goes wrong in a line of the package
        lambda: torch.ones(2) @ torch.ones(3),
    ],
)
def test_a_fault_of_the_package_keeps_its_traceback_and_asks_to_be_reported(act, capsys):
    with pytest.raises((KeyError, AssertionError, RuntimeError, TypeError)) as fault:
        made_of(act)([])
    assert fault.value.__notes__ == [FAULT_OF_OURS] and "grpo_lab.doctor" in FAULT_OF_OURS
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB. Of the allocated"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 9 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
        MemoryError("out of memory: the worker was ended"),
    ],
)
def test_where_memory_does_not_do_the_planner_is_named(error):
    line = refused(made_of(raises(error)))
    assert "error: out of memory" in line and line.count("out of memory: ") <= 1
    assert line.endswith("; `python -m grpo_lab.memory` plans what a run takes, and says what to turn down")
    assert "Of the allocated" not in line


def test_a_variable_shows_where_an_error_comes_from(monkeypatch, capsys):
    monkeypatch.setenv("GRPO_LAB_TRACEBACK", "1")
    assert made_of(lambda: check_positive("epsilon", -1), "--epsilon")([]) == 2
    *trace, line = capsys.readouterr().err.splitlines()
    assert trace[0].startswith("Traceback") and any("in check_positive" in text for text in trace)
    assert line == "python -m grpo_lab.example: error: --epsilon is -1; it must be positive"


# ---- how it ends


@pytest.mark.parametrize(
    ("stop", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (Stopped("saved; go on with --resume"), 130, "saved; go on with --resume"),
        (Stopped("saved", 143), 143, "saved"),
    ],
)
def test_a_signal_ends_it_without_a_traceback(stop, code, said, capsys):
    assert made_of(raises(stop))([]) == code
    assert capsys.readouterr().err == f"\n{said}\n"


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (1, 1)])
def test_what_main_returns_is_the_exit_code(result, code):
    assert made_of(lambda: result)([]) == code


def run(code: str, arguments=(), **settings) -> subprocess.Popen:
    lines = f"import sys\nfrom grpo_lab.commands import Parser, command\n@command('x')\ndef main(_=None):\n    {code}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    return subprocess.Popen([sys.executable, "-c", f"{lines}\nsys.exit(main())", *arguments], **pipes, **settings)


@pytest.mark.parametrize(
    ("code", "codes"),
    [
        ("for n in range(100_000): print(n)", {141}),
        ("print('first', flush=True); sys.stdin.read(); print('second')", {141}),  # is still in Python's buffer
        ("Parser(prog='x', epilog='y ' * 100_000).parse_args(['--help'])", {0, 141}),  # argparse passes over it
    ],
)
def test_a_reader_that_has_seen_enough_is_no_error(code, codes):
    process = run(code, stdin=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == "" and process.wait() in codes
    process.stderr.close()


def test_a_pipe_that_breaks_elsewhere_is_an_error():
    assert "[Errno 32] the worker's pipe" in refused_but_for_a_blank_line(BrokenPipeError(32, "the worker's pipe"))


def refused_but_for_a_blank_line(error) -> str:
    process = run(f"raise BrokenPipeError{error.args}")
    printed, said = process.communicate()
    assert process.returncode == 2 and not printed.strip()
    return said


def test_a_console_that_lacks_a_letter_shows_its_number():
    printed, said = run("print('czq是谁')", env=os.environ | {"PYTHONIOENCODING": "ascii"}).communicate()
    assert printed.strip() == r"czq\u662f\u8c01" and said == ""


# ---- options


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ("--n many", "--n is 'many'; expected a whole number"),
        ("--n 1.5", "--n is '1.5'; expected a whole number"),
        ("--rate fast", "--rate is 'fast'; expected a number"),
        ("--kind c", "--kind is 'c'; expected one of "),
        ("--n", "--n has no value; expected one"),
        ("--list", "--list has no value; expected at least one"),
        ("--switch=3", "--switch is '3'; expected no value"),
        ("--kin a", "--kin is not known here; did you mean --kind?"),
        ("--zzz=3", "--zzz is not known here; --help lists what there is"),
        ("3", "3 is not known here; --help lists what there is"),
        ("", "--needed is missing; expected a value"),
        ("--one 1 --two 2", "--two is given together with --one; expected one of them"),
    ],
)
def test_what_argparse_refuses_is_said_in_our_form(arguments, want):
    def main(given):
        parser = Parser(prog="x")
        parser.add_argument("--n", type=int)
        parser.add_argument("--rate", type=float)
        parser.add_argument("--kind", choices=["a", "b"])
        parser.add_argument("--list", nargs="+")
        parser.add_argument("--switch", action="store_true")
        parser.add_argument("--needed", required=not given)
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--one")
        either.add_argument("--two")
        parser.parse_args(given)

    assert refused(main, *arguments.split()).startswith(f"x: error: {want}")


@pytest.mark.parametrize("text", ["-0.2", "-1e-3", "-1E5", "-.5", "-3.", "-inf", "-nan"])
def test_a_negative_number_is_a_value(text):
    parser = Parser(prog="x")
    parser.add_argument("--rate", type=float)
    assert str(parser.parse_args(["--rate", text]).rate) == str(float(text))


# ---- what is written at the end


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path):
    (tmp_path / "old.json").write_text("old", encoding="utf-8")
    for name in ("old.json", "new.json"):
        assert writable_file(str(tmp_path / name)) == tmp_path / name
    assert writable_folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b" and writable_folder(str(tmp_path))
    assert os.listdir(tmp_path) == ["old.json"] and (tmp_path / "old.json").read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize(
    ("kind", "name", "want"),
    [
        (writable_file, "", "is ''; expected the name of a file"),
        (writable_file, ".", "', a folder; expected the name of a file"),
        (writable_file, "none/a.json", "none does not"),
        (writable_folder, "", "is ''; expected a folder"),
        (writable_folder, "file", "', and it is a file; expected a folder"),
        (writable_folder, "file/under", "file is a file; expected a folder"),
    ],
)
def test_what_cannot_be_written_is_found_at_once(kind, name, want, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        kind(name and f"{tmp_path.as_posix()}/{name}")
    assert str(refusal.value).endswith(want)


@pytest.mark.parametrize("kind", [writable_file, writable_folder])
def test_a_place_that_is_read_only_or_full_is_found_at_once(kind, tmp_path, monkeypatch):
    def full(**where):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(argparse.ArgumentTypeError, match="that can be written, but: No space left on device"):
        kind(str(tmp_path / "x"))


# ---- all of them


def test_the_list_has_every_command_and_each_is_one(capsys):
    there = {path.parent.name for path in PACKAGE.glob("*/__main__.py")} | {"train", "evaluate"}
    assert set(COMMANDS) == there
    assert list_commands([]) == 0
    shown = capsys.readouterr().out
    assert version_line() in shown and all(f"python -m grpo_lab.{name} " in shown for name in COMMANDS)
    assert "python -m grpo_lab.train" in refused(list_commands, "trian")
    assert "'--model' " not in refused(list_commands, "train", "--model", "x")


def main_of(name: str):
    """`formulas` and `doctor` have theirs elsewhere, and would run at once."""
    place = {"formulas": "formulas.catalogue", "doctor": "doctor.checks", "train": "train", "evaluate": "evaluate"}
    return importlib.import_module(f"grpo_lab.{place.get(name, f'{name}.__main__')}").main


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_its_version_and_refuses_what_it_does_not_know(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main_of(name)(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out.split() == version_line().split()
    with pytest.raises(SystemExit) as stop:
        main_of(name)(["--help"])
    assert stop.value.code == 0 and f"usage: python -m grpo_lab.{name}" in capsys.readouterr().out


def test_the_version_is_that_of_the_package_and_of_what_it_stands_on():
    assert version_line().startswith(f"grpo_lab {grpo_lab.__version__}, torch {torch.__version__}")


@pytest.mark.parametrize(("begins_with", "said"), [("-m", "\nstopped\n"), ("mine.py", "Traceback")])
def test_ctrl_c_while_a_command_still_imports_shows_no_traceback(begins_with, said):
    code = f"import sys; sys.argv = [{begins_with!r}]; import grpo_lab; raise KeyboardInterrupt"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")
    assert run.returncode and (run.stderr == said if begins_with == "-m" else said in run.stderr)
