"""The training loop: sample, reward, compute advantages and log-probabilities, update.

`# [name]` at the end of a line is an address used by the exercises and mutation tests (formulas/lines.py).
"""

from grpo_lab.base.renamed import renamed_in_module
from grpo_lab.config import GRPOConfig
from grpo_lab.trainer.collecting import collect
from grpo_lab.trainer.evaluation import ScoredCompletions, sample_and_reward
from grpo_lab.trainer.experience import Experience
from grpo_lab.trainer.experience_logprobs import completion_logprobs, logprobs_without_gradient
from grpo_lab.trainer.loop import accumulate_gradient, train, update
from grpo_lab.trainer.optim import PolicyOptimizer
from grpo_lab.trainer.run import Run

__getattr__ = renamed_in_module(__name__, {"all_logprobs": "logprobs_without_gradient"})
