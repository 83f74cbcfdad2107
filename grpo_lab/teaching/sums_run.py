"""The rewards of the task "sums" and their weights, for lessons that train the tiny model without the command."""

from grpo_lab.rewards.named import find_rewards
from grpo_lab.task_spec import SUMS
from grpo_lab.tasks import TASKS

SUMS_REWARDS = find_rewards(TASKS[SUMS].reward_funcs)
SUMS_WEIGHTS = list(TASKS[SUMS].reward_weights or ())
