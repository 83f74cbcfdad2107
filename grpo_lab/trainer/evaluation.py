"""Measurements that do not change the training: rewards on held-out problems, and the KL to the reference."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm
from transformers import TrainerState

from grpo_lab.base.checks import InputError
from grpo_lab.base.process_state import restored_random_state
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import autocast
from grpo_lab.config.settings import SamplingParams
from grpo_lab.kl import kl_estimate
from grpo_lab.objective import token_mean
from grpo_lab.rewards.functions import reward_func_list
from grpo_lab.rewards.scoring import RewardLog, Rewards
from grpo_lab.rollout.environments.environment import Environment, sample_rollout
from grpo_lab.tasks import Rows, in_parts
from grpo_lab.trainer.experience import Experience, logprobs_without_gradient
from grpo_lab.trainer.metrics import frac_none_metrics, mean_and_std, merge_metrics, tool_metrics
from grpo_lab.trainer.rewarding import reward_rollout


class ScoredCompletions(NamedTuple):
    """B completions of held-out problems with their rewards; tensors are on the CPU.

    The completions of a problem are adjacent.
    """

    texts: list[str]
    rewards: Rewards
    lengths: Int[Tensor, " B"]  # number of tokens of the policy
    truncated: Bool[Tensor, " B"]  # True where a limit of tokens or of turns ended the completion
    correctness: Float[Tensor, " B"]  # reward by the first function, or by its `without_penalty` if it has one
    logged_metrics: dict[str, float | None]  # metrics that reward functions logged
    episodes: list | None = None  # records of the episodes; None without an environment
    turns: list[list[dict[str, str]]] | None = None  # texts of each episode, as `Rollout.turn_texts` returns them


def sample_and_reward(
    model, tokenizer, rows: Rows, reward_funcs, *, num_generations: int, batch_size: int = 512, seed: int = 1,
    reward_weights: list[float] | None = None, precision_context: AbstractContextManager | None = None,
    disable_tqdm: bool = True, environment=None, trainer_state: TrainerState | None = None, **sampling,
) -> ScoredCompletions:  # fmt: skip
    """Sample completions of every problem from a separate random stream, and reward them.

    Args:
        model, tokenizer: The policy and its tokenizer.
        rows: The held-out problems: data rows with a "prompt" and the columns that the reward functions read.
        reward_funcs: One reward function or several. None if the environment computes the reward.
        num_generations: Number of completions per problem.
        batch_size: Number of completions that are sampled at once; those of one problem are, even if it is smaller.
        seed: Seed of the random stream; the caller's random state is restored. It may equal the seed of a training
            step; pass a negative one to avoid that.
        reward_weights: Weights of the reward functions in the total reward. None: each weight is 1.
        precision_context: Context in which the policy samples, entered once for each batch, such as
            `autocast(model, config)`. None: the precision is that for which the model was loaded.
        disable_tqdm: Whether to hide the progress bar.
        environment: The environment that replies to the policy. None: the policy writes each completion alone.
        trainer_state: Progress of the run for reward functions that read it. None: the state before a run.
        sampling: Other fields of `SamplingParams`, such as `max_completion_length`.
    """
    if len(rows) == 0:
        raise InputError("rows", rows, "expected at least one problem", problem="is empty")
    sampling_params = SamplingParams(num_generations, **sampling)
    reward_log = RewardLog(trainer_state or TrainerState())
    precision_context = precision_context or autocast(model)
    first_function = next(iter(reward_func_list(reward_funcs)), None)
    without_penalty = getattr(first_function, "without_penalty", None)
    parts: list[ScoredCompletions] = []
    bar = tqdm(total=len(rows), disable=disable_tqdm, desc="evaluate", unit="problem")
    with bar, restored_random_state(seed):
        for data_rows in in_parts(rows, max(1, batch_size // num_generations)):
            with precision_context:
                rollout = sample_rollout(model, tokenizer, data_rows, sampling_params, environment)
            rewards = reward_rollout(rollout, data_rows, reward_funcs, reward_weights, reward_log)
            verdicts = rewards if without_penalty is None else reward_rollout(rollout, data_rows, without_penalty)
            part = ScoredCompletions(
                texts=rollout.texts,
                rewards=rewards,
                lengths=rollout.policy_mask.sum(-1).cpu(),
                truncated=rollout.truncated.cpu(),
                correctness=verdicts.rewards_per_func[:, 0],
                logged_metrics={},  # the reward log has them for all parts together
            )
            if rollout.episodes is not None:
                episodes = [replace(episode, environment=None) for episode in rollout.episodes]
                part = part._replace(episodes=episodes, turns=rollout.turn_texts(tokenizer))
            parts.append(part)
            bar.update(len(data_rows))
    reward_log.check_columns(sum(len(part.texts) for part in parts))
    return _concatenated(parts, reward_log.metrics())


def _concatenated(parts: list[ScoredCompletions], logged_metrics: dict[str, float | None]) -> ScoredCompletions:
    """Return the completions of all parts as one, with the metrics that the reward functions logged for all of them."""
    has_episodes = parts[0].episodes is not None
    return ScoredCompletions(
        texts=[text for part in parts for text in part.texts],
        rewards=Rewards(
            total=torch.cat([part.rewards.total for part in parts]),
            rewards_per_func=torch.cat([part.rewards.rewards_per_func for part in parts]),
            names=parts[0].rewards.names,
        ),
        lengths=torch.cat([part.lengths for part in parts]),
        truncated=torch.cat([part.truncated for part in parts]),
        correctness=torch.cat([part.correctness for part in parts]),
        logged_metrics=logged_metrics,
        episodes=[episode for part in parts for episode in part.episodes or ()] if has_episodes else None,
        turns=[turns for part in parts for turns in part.turns or ()] if has_episodes else None,
    )


def evaluate_policy(
    model,
    tokenizer,
    rows: Rows,
    reward_funcs: Callable | list | None,
    config: GRPOConfig,
    environment: Environment | None = None,
    *,
    trainer_state: TrainerState | None = None,
    **sampling_changes,
) -> dict[str, float | None]:
    """Sample and reward completions of held-out problems with the run's settings; return metrics named "eval/...".

    The random stream is the same in every evaluation of a run, so two evaluations differ by the policy alone.
    "eval/accuracy" is computed from the first reward function, or from its `without_penalty` if it has one.

    Args:
        model, tokenizer: The policy that is evaluated, and its tokenizer.
        rows: The held-out problems, as data rows.
        reward_funcs: One reward function or several. None if the environment computes the reward.
        config: The settings of the run.
        environment: The environment that replies to the policy. None: the policy writes each completion alone.
        trainer_state: Progress of the run for reward functions that read it. None: the state before a run.
        sampling_changes: Fields of `SamplingParams` whose values are not those of the run.
    """
    num_generations = config.num_generations_eval or config.num_generations
    sampling_params = replace(config.sampling_params(), num_generations=num_generations, **sampling_changes)
    scored = sample_and_reward(
        model, tokenizer, rows, reward_funcs,
        batch_size=config.per_device_eval_batch_size or config.generation_batch_size,
        seed=-1 - config.seed,  # negative, since the steps of the training have seeds from 0 on
        reward_weights=config.reward_weights, precision_context=autocast(model, config),
        environment=environment, trainer_state=trainer_state, **asdict(sampling_params),
    )  # fmt: skip
    mean, std = mean_and_std(scored.rewards.total.double())
    run_metrics = {
        "reward": mean,
        "reward_std": std,
        "completions/mean_length": scored.lengths.double().mean().item(),
        "completions/clipped_ratio": scored.truncated.double().mean().item(),
    }
    metrics = merge_metrics(
        scored.logged_metrics, run_metrics, accuracy_and_rewards(scored), tool_metrics(scored.episodes)
    )
    return {f"eval/{name}": value for name, value in metrics.items()}


def accuracy_and_rewards(scored: ScoredCompletions) -> dict[str, float | None]:
    """Return the accuracy, the mean of each reward function and the share of completions to which it did not apply.

    The names are "accuracy", "rewards/<function>/mean" and "rewards/<function>/frac_none"; a share of 0 is left out.
    """
    _, rewards_per_func, names = scored.rewards
    metrics = {"accuracy": accuracy_of(scored.correctness)}
    for name, values in zip(names, rewards_per_func.double().unbind(1), strict=True):
        metrics[f"rewards/{name}/mean"] = mean_and_std(values)[0]
    return metrics | frac_none_metrics(names, rewards_per_func)


def accuracy_of(correctness: Float[Tensor, " B"]) -> float | None:
    """Return the share of correct completions among those that have a correctness (not NaN).

    A correctness of 1 means correct. The accuracy is None if there are no values, or if one of them is neither in
    [0, 1] nor -1 (a wrong answer): the reward then does not measure correctness.
    """
    values = correctness[~correctness.isnan()]
    are_verdicts = len(values) > 0 and (((values >= 0) & (values <= 1)) | (values == -1)).all()
    return (values >= 1).double().mean().item() if are_verdicts else None


def kl_to_reference(model, reference, experience: Experience, config: GRPOConfig) -> float:
    """Estimate KL(policy || reference) per token, from the tokens in the loss; the loss reports it if beta is not 0."""
    logp, ref_logp = (logprobs_without_gradient(policy, experience, config) for policy in (model, reference))
    return token_mean(kl_estimate(logp, ref_logp, config.kl_estimator), experience.loss_mask).item()
