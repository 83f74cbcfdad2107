"""The output folder of a run: its lock, its manifest, its checkpoints, and resuming."""

from grpo_lab.trainer.run.folder.run_folder import RunFolder, check_folder
