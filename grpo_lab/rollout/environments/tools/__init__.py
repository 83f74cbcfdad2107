"""Tools (functions that the policy calls) and environments (objects in which episodes are played), as in TRL."""

from grpo_lab.rollout.environments.tools.tool_environment import ToolEnvironment
