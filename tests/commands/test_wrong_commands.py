"""A wrong command line gets one line naming the option, its value and what is expected; nothing is written.

The range of every setting is in tests/config/test_ranges.py; here is one of each kind, for each command.
"""

import functools
import shlex
import shutil
from pathlib import Path

import pytest

from grpo_lab.__main__ import COMMANDS
from grpo_lab.__main__ import main as grpo_lab_command
from grpo_lab.models.folders import TINY
from tests.support.refused import refused
from tests.support.scripts import load_script

HUGE = "9223372036854775808"  # 2**63

# Command and options -> what the line says. {tmp} has a file, an empty folder, a full one, and a model without weights.
WRONG = {
    "trian": "argument command: invalid choice: 'trian' (choose from ",
    "lessons": "the following arguments are required: DIR",
    "doctor --fix": "--fix is not known here; --help lists what there is",
    "train": "the following arguments are required: --output_dir",
    "train --output_dir ''": "argument --output_dir: '' is not a folder that can be written",
    "train --output_dir {tmp}/file": "file' is not a folder that can be written",
    "train --output_dir {tmp}/run --epsilon -2e-1": "--epsilon is -0.2; it must",
    "train --output_dir {tmp}/run --epsilon wide": "argument --epsilon: invalid float value: 'wide'",
    "train --output_dir {tmp}/run --reward_funcs": "argument --reward_funcs: expected at least one argument",
    f"train --output_dir {{tmp}}/run --seed {HUGE}": f"--seed is {HUGE}; it must lie in [0, 4294967295]",
    "train --output_dir {tmp}/run --reward_weights 1 2 3": "--reward_weights is [1.0, 2.0, 3.0]; expected",
    "train --output_dir {tmp}/run --max_step 3": "--max_step is not known here; did you mean --max_steps?",
    "train --output_dir {tmp}/run --model {tmp}/empty": "empty, which has no config.json",
    "evaluate --model {tmp}/none": "none', and there is no such folder; expected",
    "evaluate --model tiny --n 0": "--n is 0; it must be at least 1",
    "evaluate --model tiny --n 99999999": "--n is 99999999; it must be a whole number from 1 to 50000",
    "chat --model tiny --temperature -1": "--temperature is -1.0; it must be at least 0",
    "bench --device cuda": "--device is 'cuda'; expected cpu without --against",
    "bench --against trl --json ''": "argument --json: '' is not the name of a file",
    "bench --against trl --json {tmp}/none/a.json": "none/a.json' is not the name of a file in a folder that can",
    "course mark": "argument COMMAND: invalid choice: 'mark' (choose from ",
    "course grade {tmp}/none": "none'; expected a folder of submissions",
    "course grade {tmp}/empty": "empty'; expected one folder or notebook a student, and found none",
    "course grade {tmp}/empty --time-limit 0": "--time-limit is 0.0; it must lie between 1 and 86400",
    "course grade {tmp}/empty --output {tmp}/file": "file' is not a folder that can be written",
    "course release {tmp}/full": "full, not empty; expected a new or empty one, so nothing was written",
    "diagnose": "DIR is missing",
    "diagnose {tmp}/none": "none' does not exist; expected a folder of a run",
    "notebooks/build.py 99": "names is 99; expected one of 00, 01",
    "notebooks/build.py --check --take": "argument --take: not allowed with argument --check",
    "notebooks/runs/record_qwen2.py --minutes nan": "--minutes is nan; expected a finite number",
}


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what is written in vain would be seen
    (tmp_path / "file").write_text("", encoding="utf-8")
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "work.txt").write_text("an evening's work", encoding="utf-8")
    return tmp_path


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


script = functools.cache(load_script)


def refusal(words: list[str]) -> str:
    """The one line, of a command or of a script; it begins with the name of what was called."""
    if words and words[0].endswith(".py"):
        line, name = refused(script(words[0]).main, *words[1:]), f"python {words[0]}"
    else:
        line, name = refused(grpo_lab_command, *words), "python -m grpo_lab." if words[0] in COMMANDS else "grpo-lab"
    assert line.startswith(name) or line.startswith("grpo-lab lessons"), line
    return line


def test_what_is_typed_wrong_is_one_line_that_says_what_is_expected(places):
    before = everything(places)
    for typed, want in WRONG.items():
        line = refusal([word.format(tmp=places.as_posix()) for word in shlex.split(typed)])
        assert want in line and len(line) < 1000, typed
        assert everything(places) == before, typed


def test_a_damaged_model_is_said_to_be_damaged(places, capfd):
    for number, (typed, file, content, want) in enumerate([
        ("evaluate --n 1 --model", "config.json", "{", "not a valid JSON file"),
        ("evaluate --n 1 --model", "tokenizer.json", "{}", ", whose tokenizer cannot be loaded"),
        ("train --output_dir run --model", "model.safetensors", "cut short", "download"),
    ]):  # fmt: skip
        folder = shutil.copytree(TINY, places / f"damaged{number}")
        (folder / file).write_text(content, encoding="utf-8")
        assert grpo_lab_command([*typed.split(), str(folder)]) == 2
        *_, line = capfd.readouterr().err.splitlines()  # after what was said before the model was loaded
        assert line.startswith(f"python -m grpo_lab.{typed.split()[0]}: error: ") and want in line and "damaged" in line
        assert not (places / "run").exists()
