"""The old path of `grpo_lab.prefix_probability`."""

from grpo_lab.prefix_probability import prefix_probability as habit_probability  # noqa: F401
