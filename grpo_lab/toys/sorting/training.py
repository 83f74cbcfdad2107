"""Training in the toy world of `sorting`: the whole of GRPO on one screen, several seeds side by side.

A round: ask P prompts, draw G responses for each, score them, and take `num_iterations` inner steps on that one batch.
The policy samples, and is updated; the old policy is never kept, only the log-probabilities that it gave to its own
responses. There is no reference: `kl_penalty` is what one would cost.
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

Reward = Callable[[Tensor, Tensor], Tensor]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
WIDTH = 16  # D of the policy


class Experience(NamedTuple):
    """One batch: all that the inner steps need. The old policy is in it as `old_logp`, and nowhere else."""

    prompts: Int[Tensor, "S P T"]
    responses: Int[Tensor, "S P G T"]
    old_logp: Float[Tensor, "S P G T"]
    rewards: Float[Tensor, "S P G"]
    advantages: Float[Tensor, "S P G"]


@dataclass
class SortingRun:
    """The result of training. `history["reward"]` and the others have a column for each of `rounds`.

    All of them are measured on the held-out prompts, four responses each: "reward", the one that is trained on;
    "exact", the share of responses that are the sorted prompt; "gamed", the share that are not, and yet get the
    maximum of `sorting_reward`; "entropy", of the policy at one position, in nats (at most log V).
    `losses` are those of the last inner step in each of `rounds` but the final one.
    """

    policy: SortingPolicy
    rounds: list[int]
    history: dict[str, Float[Tensor, "S N"]]
    losses: Float[Tensor, "S M"]


def train_sorting(
    prompts: SortingPrompts,
    *,
    reward: Reward = repaired_reward,
    weights: str = "normalised",
    loss: str | Loss = "clipped",
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
        prompts: from `make_prompts`.
        reward: any function (prompts BT, responses BT) -> B.
        weights: mode of `update_weights`.
        loss: of `surrogate_loss`, or a function (logp BT, old_logp BT, advantages B) -> scalar.
        seeds: each gives a run of its own, whatever the other seeds are.
        rounds: how often a batch is sampled.
        num_prompts: P, prompts a round.
        num_generations: G, responses a prompt.
        num_iterations: inner steps on each batch.
        learning_rate: of Adam.
        eval_every: rounds between two entries of the history.
    """
    _check_counts(
        seeds=len(seeds), rounds=rounds, num_prompts=num_prompts, num_generations=num_generations,
        num_iterations=num_iterations, eval_every=eval_every,
    )  # fmt: skip
    check_positive("learning_rate", learning_rate)
    generators = _generators(seeds)
    eval_generators = _generators(seeds)  # separate, so that evaluating more often changes nothing
    policy = init_policy(prompts.numbers, prompts.train.shape[1], WIDTH, generators)
    optimizer = torch.optim.Adam(policy, lr=learning_rate)
    points, losses = {}, []
    for round_index in tqdm(range(rounds), unit="round", delay=2, leave=False):
        batch = collect(
            policy, _choose(prompts.train, num_prompts, generators), reward, weights, num_generations, generators
        )
        if measured := round_index % eval_every == 0:
            points[round_index] = evaluate_sorting(policy, prompts.held_out, reward, eval_generators)
        for _ in range(num_iterations):
            logp = response_logprobs(position_logprobs(batch.prompts, *policy), batch.responses)
            total = len(seeds) * batch_loss(logp, batch, loss)  # the sum over seeds of their mean losses
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        if not total.isfinite():
            raise FloatingPointError(
                f"the loss is {total.item()} in round {round_index}; a smaller learning_rate may help"
            )
        if measured:
            losses.append(_loss_of_each_seed(logp.detach(), batch, loss))
    points[rounds] = evaluate_sorting(policy, prompts.held_out, reward, eval_generators)
    history = {name: torch.stack([point[name] for point in points.values()], dim=1) for name in points[rounds]}
    return SortingRun(policy.copy(), list(points), history, torch.stack(losses, dim=1))


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_at_least(name, count, 1)


@torch.no_grad()
def collect(
    policy: SortingPolicy,
    prompts: Int[Tensor, "S P T"],
    reward: Reward,
    weights: str,
    num_generations: int,
    generators: list[torch.Generator],
) -> Experience:
    """Sample responses, score them and weigh them. Nothing in here carries a gradient."""
    logp = position_logprobs(prompts, *policy)
    responses = sample_responses(logp, _uniform(generators, prompts.shape[1], num_generations, prompts.shape[2]))
    rewards = _score(reward, prompts, responses)
    advantages = update_weights(rearrange(rewards, "S P G -> (S P) G"), weights).reshape(rewards.shape)
    return Experience(prompts, responses, response_logprobs(logp, responses), rewards, advantages)


def batch_loss(logp: Float[Tensor, "S P G T"], batch: Experience, loss: str | Loss) -> Float[Tensor, ""]:
    """The loss over all rows of the batch."""
    function = loss if callable(loss) else partial(surrogate_loss, loss=loss)
    return function(_rows(logp), _rows(batch.old_logp), batch.advantages.flatten())


def _loss_of_each_seed(logp: Tensor, batch: Experience, loss: str | Loss) -> Tensor:
    """The loss of each seed's rows alone: shape (S,)."""
    parts = zip(logp.split(1), *(values.split(1) for values in batch), strict=True)
    return torch.stack([batch_loss(seed_logp, Experience(*seed_batch), loss) for seed_logp, *seed_batch in parts])


@torch.no_grad()
def evaluate_sorting(
    policy: SortingPolicy, prompts: Int[Tensor, "N T"], reward: Reward, generators: list[torch.Generator]
) -> dict[str, Float[Tensor, " S"]]:
    """The metrics of `SortingRun`, for each seed, on 128 prompts drawn from those given, with four responses each."""
    drawn_prompts = _choose(prompts, 128, generators)
    logp = position_logprobs(drawn_prompts, *policy)
    responses = sample_responses(logp, _uniform(generators, drawn_prompts.shape[1], 4, drawn_prompts.shape[2]))
    scores = {
        "reward": _score(reward, drawn_prompts, responses),
        "exact": _score(exact_reward, drawn_prompts, responses),
    }
    top = _score(sorting_reward, drawn_prompts, responses) == 2 * drawn_prompts.shape[2] - 1
    scores["gamed"] = (top & (scores["exact"] == 0)).float()
    entropy = -(logp.exp() * logp).sum(-1)  # S P T
    return {name: values.mean((1, 2)) for name, values in scores.items()} | {"entropy": entropy.mean((1, 2))}


def greedy_responses(policy: SortingPolicy, prompts: Int[Tensor, "P T"]) -> Int[Tensor, "S P T"]:
    """The most likely response of each seed's policy to each prompt."""
    prompts_per_seed = repeat(prompts, "P T -> S P T", S=len(policy.embedding))
    return position_logprobs(prompts_per_seed, *policy).argmax(-1)


def _generators(seeds: Sequence[int]) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def _choose(prompts: Tensor, count: int, generators: list[torch.Generator]) -> Tensor:
    """`count` prompts for each seed, with replacement: shape (S, P, T)."""
    return torch.stack(
        [prompts[torch.randint(len(prompts), (count,), generator=generator)] for generator in generators]
    )


def _uniform(generators: list[torch.Generator], *shape: int) -> Tensor:
    return torch.stack([torch.rand(shape, generator=generator) for generator in generators])


def _score(reward: Reward, prompts: Tensor, responses: Tensor) -> Tensor:
    """The reward of each response: (S, P, T) and (S, P, G, T) -> (S, P, G)."""
    repeated_prompts = repeat(prompts, "S P T -> (S P G) T", G=responses.shape[2])
    rewards = reward(repeated_prompts, _rows(responses))
    if rewards.shape != repeated_prompts.shape[:1]:
        raise InputError(
            f"reward returned shape {tuple(rewards.shape)}; expected ({len(repeated_prompts)},), one number per row"
        )
    return rewards.reshape(responses.shape[:3])


def _rows(values: Tensor) -> Tensor:
    return rearrange(values, "S P G T -> (S P G) T")
