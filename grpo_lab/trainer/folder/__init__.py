"""The output folder of a run: its lock, its manifest, its checkpoints, and resuming."""

from grpo_lab.base.names import METRICS
from grpo_lab.trainer.folder.run_folder import COMPLETIONS, RunFolder, check_folder
