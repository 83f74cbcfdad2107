"""The divisors of the losses; and a loss that is added as CONTRIBUTING describes trains from the command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_lab
from grpo_lab.objective import LOSSES, divides_by_update_tokens

ROOT = Path(grpo_lab.__file__).parents[1]
TRAIN = "--output_dir out --loss_type my_clip --my_width 0.1 --max_steps 1 --num_iterations 2"
TRAIN += " --num_generations 4 --generation_batch_size 8 --max_completion_length 4"
# The program of a process that imports a copy of objective/losses.py with the three pieces of CONTRIBUTING in it.
SCRIPT = f"""
import importlib.abc, importlib.machinery, json, sys
from pathlib import Path

class WithMyLoss(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        return compile(Path("losses.py").read_text(encoding="utf-8"), self.path, "exec")

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "grpo_lab.objective.losses":
            file = str(Path(path[0]) / "losses.py")
            return importlib.util.spec_from_file_location(name, file, loader=WithMyLoss(name, file))

sys.meta_path.insert(0, Finder())
import torch
from grpo_lab import train
from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.objective import policy_loss
from tests.config.test_settings import test_loss_result_depends_on_exactly_the_settings_it_reads
from tests.trainer.test_loop_step import test_micro_batch_size_changes_no_gradient_except_with_bnpo

ones = torch.ones(1, 2)
loss = policy_loss(0.5 * ones, ones[0, :1], ones.bool(), 0 * ones, loss_type="my_clip", my_width=0.25)[0]
assert loss == -0.25, loss
assert train.main({TRAIN.split()!r}) == 0
settings = json.load(open("out/grpo_config.json"))
assert (settings["loss_type"], settings["my_width"]) == ("my_clip", 0.1)
assert GRPOConfig(loss_type="my_clip", my_width=0.4).loss_arguments()["my_width"] == 0.4
ours = {{"loss_type": "my_clip"}}
for wrong in ({{"my_width": 0.1}}, ours | {{"my_width": 2.0}}, ours | {{"delta": 3.0}}):
    try:
        GRPOConfig(**wrong)
    except InputError as error:
        assert error.argument in ("my_width", "delta")
    else:
        raise AssertionError(wrong)
test_loss_result_depends_on_exactly_the_settings_it_reads("my_clip")
test_micro_batch_size_changes_no_gradient_except_with_bnpo("my_clip")
"""


def test_dapo_cispo_and_vespo_divide_by_the_tokens_of_the_update():
    assert {name for name in LOSSES if divides_by_update_tokens(name)} == {"dapo", "cispo", "vespo"}
    with pytest.raises(ValueError, match="^loss_type is 'ppo'; expected one of 'grpo'"):
        divides_by_update_tokens("ppo")


@pytest.mark.slow
def test_a_loss_with_a_setting_of_its_own_is_three_pieces_of_one_file(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"## Adding a loss\n.*?```python\n(.*?)```", text, re.DOTALL)
    setting, function, entry = block.strip("\n").split("\n\n")
    source = (ROOT / "grpo_lab" / "objective" / "losses.py").read_text(encoding="utf-8")
    for anchor, piece in (
        ("\n\n\nclass LossBatch(", setting),
        ("\n\n\n# Makes a loss with the clipped surrogate", "\n\n" + function),
    ):
        assert source.count(anchor) == 1
        source = source.replace(anchor, f"\n{piece}{anchor}")
    source = re.sub(r"(LOSSES = \{\n.*?)\n\}", lambda match: f"{match[1]}\n{entry}\n}}", source, flags=re.DOTALL)
    (tmp_path / "losses.py").write_text(source, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
