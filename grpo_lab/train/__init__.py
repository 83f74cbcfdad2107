"""The command `grpo-lab train`: train a policy on a task of the course or your own.

The modules, in the order in which a run passes them: `options` reads what was typed into `RunOptions`, `plan` looks up
what these name, `checks` checks the plan before weights are loaded (and reports on a plan that is not carried out), and
one of the `engines` loads the model and trains it. `cli` calls them in this order. A script needs none of them: it
calls `grpo_lab.trainer.train`. Notebook 07 trains the tiny model on the task "sums".
"""

from grpo_lab.train.cli import main
from grpo_lab.train.options import RunOptions, read_options, train_parser
