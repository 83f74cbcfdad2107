"""The output folder of a run: who may use it, what the run owns in it, and where it goes on from."""

from grpo_lab.trainer.folder.manifest import COMPLETIONS, METRICS, check_folder, fingerprints
from grpo_lab.trainer.folder.run_folder import RunFolder
