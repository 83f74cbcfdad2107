"""The training loop: sample, reward, compute advantages and log-probabilities, update.

Read `loop.py` first: the whole loop. Beside it are its steps: `collecting`, `rewarding`, `experience`, `evaluation` and
`metrics`. In the folders: `optim/` updates the weights, and `run/` is the life of a run, with its inputs, reports,
output folder and resuming.

Imports go one way: the steps and `optim/` know nothing of `run/`, `run/` knows nothing of `loop.py`, and `loop.py`
imports from all of them.

`# [name]` at the end of a line is an address used by the exercises and mutation tests (formulas/lines.py).
"""

from grpo_lab.config import GRPOConfig
from grpo_lab.trainer.collecting import collect
from grpo_lab.trainer.evaluation import ScoredCompletions, sample_and_reward
from grpo_lab.trainer.experience import Experience, completion_logprobs, logprobs_without_gradient
from grpo_lab.trainer.loop import accumulate_gradient, train, update
from grpo_lab.trainer.optim import PolicyOptimizer
from grpo_lab.trainer.run import Run
