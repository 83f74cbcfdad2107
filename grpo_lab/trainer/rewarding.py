"""The former place of `reward_rollout`."""

from grpo_lab.trainer.experience import reward_rollout as reward_rollout
