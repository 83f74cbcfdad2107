"""A script that test_processes.py runs by torchrun: `on_processes.py FOLDER SETUP` trains on completions in FOLDER."""

import json
import os
import sys
from pathlib import Path

import torch

from grpo_lab.models import load_policy
from grpo_lab.train.trl.fsdp import load_in_first_process
from tests.support.replay import replay_on_trl
from tests.support.small_policy import make_config
from tests.support.two_processes import CONFIG, ENGINE_ARGUMENTS, FUNCTIONS, ROWS

folder, setup = Path(sys.argv[1]), ENGINE_ARGUMENTS[sys.argv[2]]
config = make_config(**CONFIG, output_dir=str(folder / "out"))
rollouts = json.loads((folder / "rollouts.json").read_text())
load = load_in_first_process if setup["fsdp"] else load_policy
model, tokenizer = load(folder / "base", precision="fp32")
known = torch.cat([p.detach().flatten() for p in model.parameters()]).abs().sum().item()
_, updates = replay_on_trl(rollouts, model, tokenizer, ROWS, FUNCTIONS, config, **setup)
torch.save({"updates": updates, "known": known}, folder / f"rank{os.environ['RANK']}.pt")
