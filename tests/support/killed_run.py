"""A run in a process of its own, for tests to kill: `python -m tests.support.killed_run FOLDER`.

It says every step aloud and waits for an answer, so that it is never further than one step on, however fast or busy the
machine is.
"""

import sys
from pathlib import Path

import torch

from grpo_lab.trainer import train
from grpo_lab.trainer.folder.manifest import MANIFEST
from tests.support.worlds import ROWS, letter_reward, make_config, make_world

SETTINGS = {
    "max_steps": 15,
    "save_steps": 1,
    "beta": 0.1,
    "ref_model_sync_steps": 4,
    "num_iterations": 2,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
}


def continue_run(folder: Path, callback=None):
    torch.set_num_threads(1)
    model, tokenizer = make_world()
    resume = (folder / MANIFEST).is_file()
    config = make_config(output_dir=str(folder), resume_from_checkpoint=resume, **SETTINGS)
    history = train(model, tokenizer, ROWS, letter_reward, config, callback)
    return model, history


if __name__ == "__main__":
    continue_run(Path(sys.argv[1]), lambda step, metrics: (print("step", step, flush=True), sys.stdin.readline()))
