"""Measure a policy on problems: sample completions, reward them, and compute their metrics or make records of them.

Modules that need transformers are imported inside the functions, so that the command's --help comes at once.
"""

from collections.abc import Callable
from statistics import fmean as mean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_lab.base.checks import InputError
from grpo_lab.config.precision import autocast
from grpo_lab.evaluate.estimates import pass_at_k, wilson_interval
from grpo_lab.rewards import accuracy_reward, format_reward
from grpo_lab.tasks import Rows, has_thinking, in_parts

if TYPE_CHECKING:
    from grpo_lab.trainer.evaluation import ScoredCompletions


def evaluate(
    model,
    tokenizer,
    rows: Rows,
    *,
    num_generations: int = 4,
    max_completion_length: int = 64,
    temperature: float = 1.0,
    reward_funcs: Callable | list[Callable] = accuracy_reward,
    batch_size: int = 512,
    seed: int = 1,
    disable_tqdm: bool = True,
    reward_weights: list[float] | None = None,
    environment=None,
) -> dict:
    """Sample completions for each problem, and compute accuracy, rewards and other metrics.

    The result is `evaluation_metrics(sample_and_reward(...), ...)`: call these two to get the completions as well.
    `sample_and_reward` is in `grpo_lab.trainer`.

    Args:
        model, tokenizer: The policy and its tokenizer.
        rows: The problems: dicts with "prompt" and the columns that the reward functions read.
        num_generations: Number of completions per problem.
        max_completion_length: Maximum number of tokens of a completion.
        temperature: Temperature of the sampler, greater than 0.
        reward_funcs: One or several reward functions, called as in training. A completion is right if the first
            function gives 1.
        batch_size: Number of completions that are sampled at a time.
        seed: Seed from which the completions are drawn.
        disable_tqdm: Whether to hide the progress bar.
        reward_weights: The weights of the rewards in the total reward, as in training; an environment's own reward has
            the weight 1. None: the total reward is not reported.
        environment: A `TextEnvironment` or a `ToolEnvironment`; None if the policy writes the whole completion.

    Returns:
        The metrics that `evaluation_metrics` describes, ready for JSON.
    """
    from grpo_lab.trainer.evaluation import sample_and_reward

    scored = sample_and_reward(
        model, tokenizer, rows, reward_funcs, num_generations=num_generations,
        max_completion_length=max_completion_length, temperature=temperature, batch_size=batch_size, seed=seed,
        reward_weights=reward_weights, disable_tqdm=disable_tqdm, environment=environment,
    )  # fmt: skip
    return evaluation_metrics(scored, num_generations, has_reward_weights=reward_weights is not None)


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


def sample_records(rows: Rows, scored: "ScoredCompletions") -> list[dict]:
    """Make a record of each completion, ready for JSON; a reward that does not apply is None.

    With an environment, "turns" lists the turns and who wrote each, and "prompt" includes the text that `reset`
    appended.

    rows: The problems.
    scored: Their completions, as `sample_and_reward` returns them.
    """
    from grpo_lab.trainer.run.reports import completion_record

    G = len(scored.texts) // len(rows)
    total, rewards_per_func, names = scored.rewards
    columns = (rewards_per_func, total, scored.lengths, scored.truncated)
    values = zip(scored.texts, *(column.tolist() for column in columns), strict=True)
    episodes = scored.episodes or []
    turns_by_row = scored.turns or []
    records = []
    for number, (text, row_rewards, reward, length, truncated) in enumerate(values):
        prompt = episodes[number].prompt if episodes else None
        record = completion_record(
            rows[number // G]["prompt"] if prompt is None else prompt,
            text,
            dict(zip(names, row_rewards, strict=True)),
            reward,
            turns=turns_by_row[number] if turns_by_row else None,
            length=length,
            truncated=truncated,
        )
        records.append({"problem": number // G} | record)
    return records


@torch.no_grad()
def thinking_probability(model, tokenizer, rows: Rows, *, batch_size: int = 512) -> float:
    """Compute the exact probability that a completion begins with `<think>`, as the mean over the prompts of the rows.

    The probability is read from the logits after each prompt at temperature 1. Nothing is sampled, so there is no
    sampling variance. For a model whose first token decides whether it reasons, this is the expected share of
    completions with reasoning.
    """
    from grpo_lab.rollout import compute_logprobs, encode_prompts, evaluation_mode

    if len(rows) == 0:
        raise InputError("rows", rows, "expected at least one problem", problem="is empty")
    ids = tokenizer("<think>", add_special_tokens=False).input_ids
    if len(ids) != 1:
        raise InputError("tokenizer", ids, "expected one", problem=f"writes '<think>' as {len(ids)} tokens")
    total = 0.0
    for part in in_parts(rows, batch_size):
        prompt_ids, prompt_mask = encode_prompts(tokenizer, [row["prompt"] for row in part])
        think_ids = torch.full((len(part), 1), ids[0], device=model.device)
        prompts = prompt_ids.to(model.device), prompt_mask.to(model.device)
        prompt_of_row = torch.arange(len(part), device=model.device)
        with evaluation_mode(model), autocast(model):
            logp, _ = compute_logprobs(
                model, *prompts, think_ids, torch.ones_like(think_ids).bool(), prompt_of_row, with_entropy=False
            )
        total += logp.double().exp().sum().item()
    return total / len(rows)
