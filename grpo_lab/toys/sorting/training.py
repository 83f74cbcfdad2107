"""Training on the sorting task: all of GRPO on one screen, for several seeds side by side.

A round draws P prompts, samples G responses to each, scores them, and takes `num_iterations` inner steps on this batch.
No copy of the old policy is kept, only the log-probabilities of the responses that it sampled. There is no reference
policy; `kl_penalty` computes the term that one would add to the loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from grpo_lab.base.checks import InputError, check_at_least, check_positive
from grpo_lab.toys.sorting.losses import surrogate_loss, update_weights
from grpo_lab.toys.sorting.policy import (
    SortingPolicy,
    init_policy,
    position_logprobs,
    response_logprobs,
    sample_responses,
)
from grpo_lab.toys.sorting.task import SortingPrompts, exact_reward, repaired_reward, sorting_reward

RewardFunction = Callable[[Tensor, Tensor], Tensor]
LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
WIDTH = 16  # D of the policy


class SortingBatch(NamedTuple):
    """One batch, with everything that the inner steps need; the old policy is present only as `old_logp`."""

    prompts: Int[Tensor, "S P T"]
    responses: Int[Tensor, "S P G T"]
    old_logp: Float[Tensor, "S P G T"]
    rewards: Float[Tensor, "S P G"]
    advantages: Float[Tensor, "S P G"]


@dataclass
class SortingRun:
    """The result of training S policies.

    Attributes:
        policy: The trained policies.
        rounds: Number of rounds already trained at each measurement; the last measurement is after training.
        history: Metrics by name, each with a column for each of `rounds`. They are measured on held-out prompts, with
            four responses to each:
            "reward" is the reward used in training;
            "exact" is the share of responses that are the sorted prompt;
            "gamed" is the share of other responses that get the maximum of `sorting_reward`;
            "entropy" is the mean entropy of the policy at a position, in nats, at most log V.
        losses: The loss of the last inner step in the round after each measurement except the last.
    """

    policy: SortingPolicy
    rounds: list[int]
    history: dict[str, Float[Tensor, "S N"]]
    losses: Float[Tensor, "S M"]


def train_sorting(
    prompts: SortingPrompts,
    *,
    reward: RewardFunction = repaired_reward,
    weights: str = "normalised",
    loss: str | LossFunction = "clipped",
    seeds: Sequence[int] = range(5),
    rounds: int = 150,
    num_prompts: int = 32,
    num_generations: int = 8,
    num_iterations: int = 4,
    learning_rate: float = 5e-3,
    eval_every: int = 10,
) -> SortingRun:
    """Train one policy for each seed, all in the same tensors.

    Args:
        prompts: The prompts, as `make_prompts` returns them.
        reward: A reward function, which takes prompts (B, T) and responses (B, T) and returns rewards (B,).
        weights: A mode of `update_weights`.
        loss: The name of a loss of `surrogate_loss`, or a function that takes log-probabilities (B, T), old
            log-probabilities (B, T) and advantages (B,) and returns a scalar.
        seeds: The seeds. The run of a seed does not depend on the other seeds.
        rounds: Number of rounds; each samples a new batch.
        num_prompts: P, the number of prompts in a round.
        num_generations: G, the number of responses to each prompt.
        num_iterations: Number of inner steps on each batch.
        learning_rate: Learning rate of Adam.
        eval_every: Number of rounds between two measurements.

    Raises:
        FloatingPointError: if a loss is NaN or infinite.
    """
    _check_counts(
        seeds=len(seeds), rounds=rounds, num_prompts=num_prompts, num_generations=num_generations,
        num_iterations=num_iterations, eval_every=eval_every,
    )  # fmt: skip
    check_positive("learning_rate", learning_rate)
    generators = _generators(seeds)
    eval_generators = _generators(seeds)  # separate, so that `eval_every` does not affect training
    policy = init_policy(prompts.numbers, prompts.train.shape[1], WIDTH, generators)
    optimizer = torch.optim.Adam(policy, lr=learning_rate)
    measurements, losses = {}, []
    for round_index in tqdm(range(rounds), unit="round", delay=2, leave=False):
        batch = collect_batch(
            policy, _choose(prompts.train, num_prompts, generators), reward, weights, num_generations, generators
        )
        is_measured = round_index % eval_every == 0
        if is_measured:
            measurements[round_index] = evaluate_sorting(policy, prompts.held_out, reward, eval_generators)
        logp, total_loss = _update(policy, optimizer, batch, loss, num_iterations)
        if not total_loss.isfinite():
            raise FloatingPointError(
                f"the loss is {total_loss.item()} in round {round_index}; a smaller learning_rate may help"
            )
        if is_measured:
            losses.append(_loss_of_each_seed(logp, batch, loss))
    measurements[rounds] = evaluate_sorting(policy, prompts.held_out, reward, eval_generators)
    history = {
        name: torch.stack([metrics[name] for metrics in measurements.values()], dim=1) for name in measurements[rounds]
    }
    return SortingRun(policy.copy(), list(measurements), history, torch.stack(losses, dim=1))


def _update(
    policy: SortingPolicy,
    optimizer: torch.optim.Optimizer,
    batch: SortingBatch,
    loss: str | LossFunction,
    num_iterations: int,
) -> tuple[Tensor, Tensor]:
    """Make the inner steps on a batch; return the log-probabilities and the loss of the last one, before its update."""
    num_seeds = len(batch.prompts)
    for _ in range(num_iterations):
        logp = response_logprobs(position_logprobs(batch.prompts, *policy), batch.responses)
        total_loss = num_seeds * batch_loss(logp, batch, loss)  # the sum over seeds of their mean losses
        optimizer.zero_grad()
        total_loss.backward()
        optimizer.step()
    return logp.detach(), total_loss.detach()


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_at_least(name, count, 1)


@torch.no_grad()
def collect_batch(
    policy: SortingPolicy,
    prompts: Int[Tensor, "S P T"],
    reward: RewardFunction,
    weights: str,
    num_generations: int,
    generators: list[torch.Generator],
) -> SortingBatch:
    """Sample and score G responses to each prompt, and compute their advantages; nothing has a gradient.

    Args:
        policy: The policies of all seeds.
        prompts: The prompts of each seed.
        reward: The reward function, as in `train_sorting`.
        weights: A mode of `update_weights`.
        num_generations: G, the number of responses to each prompt.
        generators: The random number generator of each seed.
    """
    logp = position_logprobs(prompts, *policy)
    responses = sample_responses(logp, _uniform(generators, prompts.shape[1], num_generations, prompts.shape[2]))
    rewards = _score(reward, prompts, responses)
    advantages = update_weights(rearrange(rewards, "S P G -> (S P) G"), weights).reshape(rewards.shape)
    return SortingBatch(prompts, responses, response_logprobs(logp, responses), rewards, advantages)


def batch_loss(logp: Float[Tensor, "S P G T"], batch: SortingBatch, loss: str | LossFunction) -> Float[Tensor, ""]:
    """Compute the loss over all responses of all seeds; `loss` is a name or a function, as in `train_sorting`."""
    function = loss if callable(loss) else partial(surrogate_loss, loss=loss)
    return function(_rows(logp), _rows(batch.old_logp), batch.advantages.flatten())


def _loss_of_each_seed(logp: Tensor, batch: SortingBatch, loss: str | LossFunction) -> Tensor:
    """Compute the loss over the responses of each seed alone, (S,)."""
    by_seed = zip(logp.split(1), *(values.split(1) for values in batch), strict=True)
    return torch.stack([batch_loss(seed_logp, SortingBatch(*seed_batch), loss) for seed_logp, *seed_batch in by_seed])


@torch.no_grad()
def evaluate_sorting(
    policy: SortingPolicy, prompts: Int[Tensor, "N T"], reward: RewardFunction, generators: list[torch.Generator]
) -> dict[str, Float[Tensor, " S"]]:
    """Measure the metrics of `SortingRun.history` for each seed.

    For each seed, 128 prompts are drawn with replacement from the given ones, and four responses are sampled to each.
    """
    drawn_prompts = _choose(prompts, 128, generators)
    logp = position_logprobs(drawn_prompts, *policy)
    responses = sample_responses(logp, _uniform(generators, drawn_prompts.shape[1], 4, drawn_prompts.shape[2]))
    scores = {
        "reward": _score(reward, drawn_prompts, responses),
        "exact": _score(exact_reward, drawn_prompts, responses),
    }
    has_maximum = _score(sorting_reward, drawn_prompts, responses) == 2 * drawn_prompts.shape[2] - 1
    scores["gamed"] = (has_maximum & (scores["exact"] == 0)).float()
    entropy = -(logp.exp() * logp).sum(-1)  # S P T
    return {name: values.mean((1, 2)) for name, values in scores.items()} | {"entropy": entropy.mean((1, 2))}


def greedy_responses(policy: SortingPolicy, prompts: Int[Tensor, "P T"]) -> Int[Tensor, "S P T"]:
    """Return the most likely response of each seed's policy to each prompt."""
    prompts_per_seed = repeat(prompts, "P T -> S P T", S=len(policy.embedding))
    return position_logprobs(prompts_per_seed, *policy).argmax(-1)


def _generators(seeds: Sequence[int]) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def _choose(prompts: Tensor, count: int, generators: list[torch.Generator]) -> Tensor:
    """Draw `count` prompts for each seed, with replacement, (S, P, T)."""
    return torch.stack(
        [prompts[torch.randint(len(prompts), (count,), generator=generator)] for generator in generators]
    )


def _uniform(generators: list[torch.Generator], *shape: int) -> Tensor:
    return torch.stack([torch.rand(shape, generator=generator) for generator in generators])


def _score(reward: RewardFunction, prompts: Tensor, responses: Tensor) -> Tensor:
    """Score each response: prompts (S, P, T) and responses (S, P, G, T) give rewards (S, P, G)."""
    repeated_prompts = repeat(prompts, "S P T -> (S P G) T", G=responses.shape[2])
    rewards = reward(repeated_prompts, _rows(responses))
    if rewards.shape != repeated_prompts.shape[:1]:
        raise InputError(
            f"reward returned shape {tuple(rewards.shape)}; expected ({len(repeated_prompts)},), one number per row"
        )
    return rewards.reshape(responses.shape[:3])


def _rows(values: Tensor) -> Tensor:
    return rearrange(values, "S P G T -> (S P G) T")
