"""The output folder of a run: who may use it, what the run owns in it, and where it goes on from."""

from grpo_lab.base.names import METRICS
from grpo_lab.trainer.folder.run_folder import COMPLETIONS, RunFolder, check_folder
