"""Training on the game "higher or lower", with one update on each batch of episodes.

Every batch has G episodes of every secret. The loss is `policy_loss` over the tokens that the policy wrote, divided by
a constant. With leave-one-out advantages and one update per batch, the expected gradient that a step ascends is the
gradient of the expected reward.
"""

from dataclasses import dataclass, field

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from grpo_lab.base.checks import check_at_least, check_choice, check_positive
from grpo_lab.logprobs import token_logprobs
from grpo_lab.objective import aggregate, policy_loss
from grpo_lab.toys.guess.exact import TURN_ADVANTAGES, secret_episodes, win_probability
from grpo_lab.toys.guess.policy import GuessPolicy, greedy_reward, sample_episodes
from grpo_lab.toys.guess.world import PAD, GuessWorld, episode_rewards, policy_mask, turn_states

GROUPS = ("one secret", "mixed secrets")


@dataclass
class GuessRun:
    """The result of training: the policy, and its exact rewards during training.

    Attributes:
        policy: The trained policy.
        steps: The numbers of steps after which the rewards were measured.
        rewards: The expected reward of sampled episodes after each of `steps`.
        greedy: The mean reward over all secrets with the most likely guesses, after each of `steps`.
    """

    policy: GuessPolicy
    steps: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    greedy: list[float] = field(default_factory=list)


def entropy_bonus(logits: Float[Tensor, "B T V"], mask: Bool[Tensor, "B T"], max_length: int) -> Float[Tensor, ""]:
    r"""Compute the entropy bonus: the policy's entropy at the tokens it wrote, divided like the loss of "dr_grpo".

    H = -\frac{1}{B \, T_{\max}} \sum_{b,t} m_{b,t} \sum_v \pi_{b,t,v} \log \pi_{b,t,v} \tag{11.4}

    Args:
        logits: The logits of every token; -inf is allowed.
        mask: m, True at the tokens that the policy wrote.
        max_length: T_max, the largest number of tokens that the policy can write in an episode.
    """
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0)).sum(-1)
    bonus = aggregate(entropy, mask, "dr_grpo", max_length)  # scalar (11.4)
    return bonus


def batch_advantages(
    world: GuessWorld, tokens: Int[Tensor, "B T"], num_generations: int, groups: str, advantage: str
) -> Float[Tensor, "B K"]:
    """Compute the advantage of each turn of a batch.

    Args:
        world: The environment.
        tokens: The episodes, G adjacent rows for every secret.
        num_generations: G, the number of episodes in a group.
        groups: "one secret" for groups of the G episodes of a secret; "mixed secrets" for as many groups of G episodes
            in the order of secrets 1, 2, 3 ... n, 1, 2 ... The episodes of a group share a baseline.
        advantage: The name of the entry of `TURN_ADVANTAGES` that computes the advantages.
    """
    rows = torch.arange(len(tokens))
    if groups == "mixed secrets":
        rows = rearrange(rows, "(S G) -> (G S)", G=num_generations)
    rewards = episode_rewards(world, tokens)
    turn_data = (rewards, policy_mask(tokens)[:, ::2], turn_states(world, tokens))
    grouped = [rearrange(values[rows], "(P G) K -> P G K", G=num_generations) for values in turn_data]
    advantages = torch.empty_like(rewards)
    advantages[rows] = rearrange(TURN_ADVANTAGES[advantage](*grouped), "P G K -> (P G) K")
    return advantages


def train_guess(
    world: GuessWorld,
    *,
    seed: int = 0,
    steps: int = 300,
    num_generations: int = 32,
    learning_rate: float = 2e-3,
    entropy_weight: float = 0.0,
    groups: str = "one secret",
    advantage: str = "trajectory",
    train_on_replies: bool = False,
    eval_every: int = 20,
) -> GuessRun:
    """Train a policy from random weights.

    Args:
        world: The environment.
        seed: Seed of the initial weights and of the sampled guesses.
        steps: Number of batches, each with one update.
        num_generations: G, the number of episodes of each secret in a batch.
        learning_rate: Learning rate of AdamW. The norm of the gradient is clipped at 1.
        entropy_weight: Weight of `entropy_bonus`, which is subtracted from the loss.
        groups: An entry of `GROUPS`; it determines which episodes share a baseline, see `batch_advantages`.
        advantage: The name of the entry of `TURN_ADVANTAGES` that computes the advantages.
        train_on_replies: Whether to make the mistake of training on the replies, as if the policy had written them.
        eval_every: Number of steps between two measurements.
    """
    check_choice("groups", groups, GROUPS)
    check_choice("advantage", advantage, TURN_ADVANTAGES)
    check_at_least("num_generations", num_generations, 2)
    check_positive("learning_rate", learning_rate)
    generator = torch.Generator().manual_seed(seed)
    run = GuessRun(GuessPolicy(world, seed))
    optimizer = torch.optim.AdamW(run.policy.parameters(), lr=learning_rate)
    secrets = torch.arange(1, world.numbers + 1).repeat_interleave(num_generations)
    for step in range(steps + 1):
        if step % eval_every == 0 or step == steps:
            _measure(run, step)
        if step < steps:
            tokens = sample_episodes(run.policy, secrets, generator)
            advantages = batch_advantages(world, tokens, num_generations, groups, advantage)
            loss = guess_loss(run.policy, tokens, advantages, entropy_weight, train_on_replies)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(run.policy.parameters(), 1.0)
            optimizer.step()
    return run


def guess_loss(
    policy: GuessPolicy,
    tokens: Int[Tensor, "B T"],
    advantages: Float[Tensor, "B K"],
    entropy_weight: float = 0.0,
    train_on_replies: bool = False,
) -> Float[Tensor, ""]:
    """Compute the loss of a batch: `policy_loss` over the tokens that the policy wrote, minus the entropy bonus.

    Args:
        tokens: The episodes.
        advantages: The advantage of each turn.
        entropy_weight: Weight of `entropy_bonus`.
        train_on_replies: Whether to make the mistake of including the replies, as if the policy had written them.
    """
    unique_episodes, index = tokens.unique(dim=0, return_inverse=True)  # one forward pass for equal episodes
    logits = policy(unique_episodes)
    logp = token_logprobs(logits, unique_episodes)[index]
    mask = tokens != PAD if train_on_replies else policy_mask(tokens)
    token_advantages = repeat(advantages, "B K -> B (K two)", two=2)
    length = tokens.shape[1] if train_on_replies else tokens.shape[1] // 2
    loss, _ = policy_loss(logp, token_advantages, mask, loss_type="dr_grpo", max_completion_length=length)
    if entropy_weight:
        loss = loss - entropy_weight * entropy_bonus(logits[index], policy_mask(tokens), policy.world.guesses)
    return loss


def _measure(run: GuessRun, step: int) -> None:
    with torch.no_grad():
        run.steps.append(step)
        run.rewards.append(win_probability(run.policy).item())
        run.greedy.append(greedy_reward(run.policy))


def expected_step(policy: GuessPolicy, train_on_replies: bool = False) -> Float[Tensor, " N"]:
    """Compute the exact expectation of the gradient that a step ascends, by summing over all episodes of all secrets.

    It holds for groups of one secret, and equals the gradient of `win_probability`.

    Args:
        train_on_replies: Whether to make the mistake of training on the replies. The result then differs from the
            gradient of `win_probability`.

    Returns:
        The gradient with respect to all N parameters, as one vector.
    """
    episodes_by_secret = [secret_episodes(policy, secret) for secret in range(1, policy.world.numbers + 1)]
    tokens = torch.cat([episodes.tokens for episodes in episodes_by_secret])
    weights = [
        episodes.probability * (episodes.rewards - episodes.probability @ episodes.rewards) / len(episodes_by_secret)
        for episodes in episodes_by_secret
    ]
    advantages = repeat(torch.cat(weights).to(policy.head.weight), "B -> B K", K=policy.world.guesses)
    # The loss is a mean over rows, divided by the largest number of trained tokens; here a sum is needed.
    max_trained_tokens = tokens.shape[1] if train_on_replies else policy.world.guesses
    gain = -guess_loss(policy, tokens, advantages, train_on_replies=train_on_replies) * len(tokens) * max_trained_tokens
    parameters = list(policy.parameters())
    return nn.utils.parameters_to_vector(torch.autograd.grad(gain, parameters, materialize_grads=True))
