"""The loop: sample, reward, compare, score, step."""

from grpo_lab.config import GRPOConfig
from grpo_lab.objective import microbatch_loss
from grpo_lab.trainer.loop import accumulate_gradient, collect, train, update
from grpo_lab.trainer.optim import PolicyOptimizer
from grpo_lab.trainer.run import Run
from grpo_lab.trainer.scoring import score_all
