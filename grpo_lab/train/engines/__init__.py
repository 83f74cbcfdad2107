"""The same run on another trainer: `python -m grpo_lab.train ... --engine trl`.

Task, rewards, model, metrics, evaluation and folder stay ours. Only `trl` and `trl_trainer` import TRL.
"""
