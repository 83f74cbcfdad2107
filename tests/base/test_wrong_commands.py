"""Tests that a wrong command line gives one line with the option, its value and what is expected, and writes nothing.

The ranges of all settings are tested in tests/config/test_ranges.py. Here is one wrong option of each kind per command.
"""

import functools
import shlex
import shutil
from pathlib import Path

import pytest

from grpo_lab.__main__ import COMMANDS
from grpo_lab.__main__ import main as grpo_lab_command
from grpo_lab.models.folders import TINY
from tests.support.refusals import refusal_of
from tests.support.scripts import load_script

LINES = Path(__file__).with_name("wrong_commands.txt").read_text(encoding="utf-8").splitlines()
WRONG = dict(line.split(" => ") for line in LINES if not line.startswith("#"))


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
    for typed, expected in WRONG.items():
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
