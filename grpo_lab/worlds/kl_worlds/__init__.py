"""Worlds in which the KL estimators can be judged exactly: two Gaussians, and policies that choose one of V answers.

With few answers nothing needs to be sampled to know the truth: expectations are sums, and the policy that a penalty
leads to has a closed form. Axes: S runs side by side (seeds or starting points), V answers, G samples a step.
"""

from grpo_lab.worlds.kl_worlds.bandit import best_policy, best_policy_forward, train_bandit
from grpo_lab.worlds.kl_worlds.moments import enumerated_moments, gaussian_moments
from grpo_lab.worlds.kl_worlds.penalties import PENALTIES, descend, expected_penalty, penalty, sampled_penalty
