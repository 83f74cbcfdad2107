"""Run by test_processes.py under torchrun: `on_processes.py FOLDER [--fsdp]` trains on the completions of FOLDER."""

import json
import os
import sys
from pathlib import Path

import torch

from grpo_lab.models import load_policy
from tests.support.replay import replayed
from tests.support.worlds import make_config
from tests.train.engines.test_processes import CONFIG, FUNCTIONS, ROWS

folder = Path(sys.argv[1])
config = make_config(**CONFIG, output_dir=str(folder / "out"))
rollouts = json.loads((folder / "rollouts.json").read_text())
run = *load_policy(folder / "base", precision="fp32"), ROWS, FUNCTIONS, config
_, seen = replayed(rollouts, *run, fsdp="--fsdp" in sys.argv)
torch.save(seen, folder / f"rank{os.environ['RANK']}.pt")
