"""The update of the weights: AdamW in every precision, clipping, and the guard against updates that are not finite."""

from grpo_lab.trainer.optim.policy_optimizer import PolicyOptimizer, clip_gradients, step_if_finite
