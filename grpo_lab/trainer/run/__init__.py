"""The life of a run: its inputs and their checks, its steps, its reports and its folder; stopping and resuming."""

from grpo_lab.trainer.run.run import Run
