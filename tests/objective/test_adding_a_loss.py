"""CONTRIBUTING says how a loss of one's own is added: done to the letter in a copy, it trains from the command line."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grpo_lab

ROOT = Path(grpo_lab.__file__).parents[1]
TRAIN = [
    *(
        "--output_dir",
        "out",
        "--loss_type",
        "my_clip",
        "--my_width",
        "0.1",
        "--max_steps",
        "1",
        "--num_iterations",
        "2",
    ),
    *("--num_generations", "4", "--generation_batch_size", "8", "--max_completion_length", "4"),
]
USED = f"""
import json, pytest, torch
from grpo_lab import train
from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.objective import policy_loss
one = torch.ones(1, 2)
loss = policy_loss(0.5 * one, one[0, :1], one.bool(), 0 * one, loss_type="my_clip", my_width=0.25)[0]
assert loss == -0.25, loss
assert train.main({TRAIN!r}) == 0
said = json.load(open("out/grpo_config.json"))
assert (said["loss_type"], said["my_width"]) == ("my_clip", 0.1)
assert GRPOConfig(loss_type="my_clip", my_width=0.4).loss_arguments()["my_width"] == 0.4
ours = {{"loss_type": "my_clip"}}
for wrong in ({{"my_width": 0.1}}, ours | {{"my_width": 2.0}}, ours | {{"delta": 3.0}}):
    try:
        GRPOConfig(**wrong)
    except InputError as error:
        assert error.argument in ("my_width", "delta")
    else:
        raise AssertionError(wrong)
held = ["tests/config/test_config.py", "tests/trainer/test_step.py", "tests/parity/test_liger.py"]
assert pytest.main(["-q", "-p", "no:cacheprovider", "-n", "0", *held, "-k", "my_clip or names_are"]) == 0
"""


def test_a_loss_with_a_setting_of_its_own_is_three_pieces_of_one_file(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"## Adding a loss\n.*?```python\n(.*?)```", text, re.DOTALL)
    setting, function, entry = block.strip("\n").split("\n\n")
    package = shutil.copytree(ROOT / "grpo_lab", tmp_path / "grpo_lab", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    table = package / "objective" / "table.py"
    source = table.read_text(encoding="utf-8")
    for place, piece in (
        ("\n\n\nclass LossBatch(", setting),
        ("\n\n\nLEVEL =", "\n\n" + function),
    ):
        assert source.count(place) == 1
        source = source.replace(place, f"\n{piece}{place}")
    source = re.sub(r"(LOSSES = \{\n.*?)\n\}", lambda found: f"{found[1]}\n{entry}\n}}", source, flags=re.DOTALL)
    table.write_text(source, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", USED], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
