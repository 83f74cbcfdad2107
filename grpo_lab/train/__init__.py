"""The command `grpo-lab train`: train a policy on a task of the course or your own.

`options` reads the options, `plan` makes the plan of a run, and `cli` calls both and trains the model. The function
that trains is `grpo_lab.trainer.train`. Notebook 07 trains the tiny model on the task "sums".
"""

from grpo_lab.rewards.named import find_rewards
from grpo_lab.task_spec import SUMS
from grpo_lab.tasks import TASKS
from grpo_lab.tasks.table import NUM_TRAINING_SUMS
from grpo_lab.train.cli import main
from grpo_lab.train.options import read_options, read_options_and_changes, train_parser
from grpo_lab.train.plan import EVAL_PROBLEMS, RunPlan, make_plan, task_and_settings

# The number of training problems, the rewards and their weights for the task "sums". Lessons that train without the
# command use them.
TRAINING_PROBLEMS = NUM_TRAINING_SUMS
REWARDS = find_rewards(TASKS[SUMS].reward_funcs)
REWARD_WEIGHTS = list(TASKS[SUMS].reward_weights)
