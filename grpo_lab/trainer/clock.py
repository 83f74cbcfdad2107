"""The former place of `Clock`."""

from grpo_lab.trainer.metrics import Clock as Clock
