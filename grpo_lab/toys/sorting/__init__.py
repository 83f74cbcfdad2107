"""The toy task of notebook 03, sorting a few numbers with GRPO: prompts and rewards, policy, losses, and training."""

from grpo_lab.toys.sorting.losses import LOSSES, UPDATE_WEIGHTS, kl_penalty, surrogate_loss, update_weights
from grpo_lab.toys.sorting.policy import (
    SortingPolicy,
    init_policy,
    position_logprobs,
    response_logprobs,
    sample_responses,
)
from grpo_lab.toys.sorting.task import ascending_pairs, exact_reward, make_prompts, repaired_reward, sorting_reward
from grpo_lab.toys.sorting.training import batch_loss, collect_batch, evaluate_sorting, greedy_responses, train_sorting
