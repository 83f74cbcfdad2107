"""The command `grpo-lab train`: train a policy on a task of the course or your own.

`options` reads the options, `plan` makes the plan of a run, and `cli` calls both and trains the model. The function
that trains is `grpo_lab.trainer.train`. Notebook 07 trains the tiny model on the task "sums".
"""

from grpo_lab.train.cli import main
from grpo_lab.train.options import read_options, read_options_and_changes, train_parser
from grpo_lab.train.plan import MAX_EVAL_PROBLEMS, RunPlan, make_plan, make_task_and_config
