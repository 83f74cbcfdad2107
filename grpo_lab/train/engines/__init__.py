"""Engines: the loop that trains a run, this package's own or TRL's (`python -m grpo_lab.train ... --engine trl`).

With TRL's loop, the task, rewards, model, metrics, evaluation and folder are still those of this package. What concerns
TRL alone is in `grpo_lab.train.trl`, which knows nothing of this folder.
"""
