"""The command `grpo-lab train`: train a policy on a task of the course or your own.

`options` reads the options, `plan` makes the plan of a run, and `cli` calls both and trains the model. The function
that trains is `grpo_lab.trainer.train`. Notebook 07 trains the tiny model on the task "sums".
"""

from grpo_lab.base.renamed import warn_renamed
from grpo_lab.train.cli import main
from grpo_lab.train.options import read_options, read_options_and_changes, train_parser
from grpo_lab.train.plan import MAX_EVAL_PROBLEMS, RunPlan, make_plan, task_and_settings

_NEW_NAMES = {
    "EVAL_PROBLEMS": "grpo_lab.train.MAX_EVAL_PROBLEMS",
    "TRAINING_PROBLEMS": "grpo_lab.tasks.table.NUM_TRAINING_SUMS",
    "REWARDS": "grpo_lab.teaching.sums_run.SUMS_REWARDS",
    "REWARD_WEIGHTS": "grpo_lab.teaching.sums_run.SUMS_WEIGHTS",
}


def __getattr__(name: str):
    """Return what an old name in `_NEW_NAMES` stood for, with a warning."""
    if name not in _NEW_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # `grpo_lab.teaching` comes after this package in the order of imports, so the values are computed again.
    from grpo_lab.rewards.named import find_rewards
    from grpo_lab.tasks.table import NUM_TRAINING_SUMS, TASKS

    warn_renamed(name, _NEW_NAMES[name])
    if name == "EVAL_PROBLEMS":
        return MAX_EVAL_PROBLEMS
    if name == "TRAINING_PROBLEMS":
        return NUM_TRAINING_SUMS
    task = TASKS["sums"]
    return find_rewards(task.reward_funcs) if name == "REWARDS" else list(task.reward_weights or [])
