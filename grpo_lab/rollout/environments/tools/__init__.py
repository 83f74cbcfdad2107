"""Tools (functions that the policy calls) and environments (which episodes are played in), under TRL's names."""

from grpo_lab.rollout.environments.tools.tool_environment import ToolEnvironment
