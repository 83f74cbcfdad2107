"""The metrics of an evaluation, computed from the completions that were sampled."""

from statistics import fmean as mean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_lab.evaluate.estimates import pass_at_k, wilson_interval
from grpo_lab.rewards import format_reward
from grpo_lab.tasks import has_thinking

if TYPE_CHECKING:
    from grpo_lab.trainer.evaluation import ScoredCompletions


def evaluation_metrics(
    scored: "ScoredCompletions", num_generations: int, has_reward_weights: bool = False
) -> dict[str, Any]:
    """Compute accuracy, rewards and other metrics of sampled completions.

    Args:
        scored: The completions of all problems, as `sample_and_reward` returns them.
        num_generations: Number of completions per problem.
        has_reward_weights: Whether the completions were sampled with `reward_weights`; only then is the total reward
            reported.

    Returns:
        A dict of metrics, ready for JSON. The first reward is that of the first function, or of its `without_penalty`
        if it has one. The first three metrics are None if it has values other than 0 to 1, or -1 for wrong answers,
        since 1 then does not mean right.

        - accuracy: share of right completions among those to which the first reward applies
        - accuracy_ci95: Wilson interval of the accuracy with one trial per *problem*, since completions of the same
          problem are not independent
        - pass_at_k: {"1": ..., "2": ..., ...}, each over the problems with at least k completions
        - rewards/<function>/mean: mean reward without weight; None if the function applied to no completion
        - rewards/<function>/frac_none: share of completions to which the function did not apply, if there are any
        - reward: mean of the weighted sum of the rewards, if `reward_weights` are given
        - metrics that reward functions log, under their own names
        - frac_reward_zero_std: share of problems whose completions all have the same total reward, as in training;
          None for one completion per problem
        - tools/call_frequency, tools/failure_frequency: if there is an environment
        - mean_length: mean length of the completions in tokens
        - format_rate: share of completions in think/answer form
        - think_rate: share of completions with reasoning between think tags
        - n, num_generations: numbers of problems, and of completions per problem
    """
    from grpo_lab.trainer.evaluation import accuracy_and_rewards
    from grpo_lab.trainer.metrics import frac_equal_rewards, mean_and_std, merge_metrics, tool_metrics

    G = num_generations
    num_problems = len(scored.texts) // G
    correctness = scored.correctness.nan_to_num(-torch.inf).reshape(num_problems, G)  # -inf: the reward did not apply
    common_metrics = accuracy_and_rewards(scored)
    accuracy = common_metrics["accuracy"]
    num_applied = int((correctness > -torch.inf).any(1).sum())
    metrics = {
        "accuracy": accuracy,
        "accuracy_ci95": None if accuracy is None else wilson_interval(accuracy, num_applied),
        "pass_at_k": None if accuracy is None else _pass_at_k_of_problems(correctness) or None,
        **common_metrics,
        **({"reward": mean_and_std(scored.rewards.total.double())[0]} if has_reward_weights else {}),
        "frac_reward_zero_std": None if G == 1 else frac_equal_rewards(scored.rewards.total.reshape(num_problems, G)),
        "mean_length": scored.lengths.double().mean().item(),
        "format_rate": mean(format_reward(scored.texts)),
        "think_rate": mean(map(has_thinking, scored.texts)),
        **tool_metrics(scored.episodes),
        "n": num_problems,
        "num_generations": G,
    }
    return merge_metrics(metrics, scored.logged_metrics)


def _pass_at_k_of_problems(correctness: Tensor) -> dict[str, float]:
    """Return the mean of `pass_at_k` for k = 1, 2, 4 ..., over the problems with at least k completions with a reward.

    correctness: Shape (problems, G). A completion is right if its value is at least 1; minus infinity means that the
        reward did not apply.
    """
    num_applied = (correctness > -torch.inf).sum(1).tolist()
    num_right = (correctness >= 1).sum(1).tolist()
    powers = [2**i for i in range(correctness.shape[1].bit_length()) if 2**i <= max(num_applied)]
    return {
        str(k): mean(pass_at_k(n, c, k) for n, c in zip(num_applied, num_right, strict=True) if n >= k) for k in powers
    }
