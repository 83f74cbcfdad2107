"""Measure a policy on problems: sample completions, reward them, and compute their metrics or make records of them.

Modules that need transformers are imported inside the functions, so that the command's --help comes at once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from grpo_lab.base.checks import InputError
from grpo_lab.config.precision import autocast
from grpo_lab.evaluate.metrics import evaluation_metrics
from grpo_lab.rewards import accuracy_reward
from grpo_lab.tasks import Rows, in_parts

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
