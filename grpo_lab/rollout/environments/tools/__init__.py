"""Tools and environments under TRL's names: functions that the policy calls, worlds that episodes are played in."""

from grpo_lab.rollout.environments.tools.environment import ToolEnvironment
