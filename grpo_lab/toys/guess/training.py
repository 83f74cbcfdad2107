"""Training in the world of higher or lower: one batch of episodes, one update, as in `sorting`, with turns.

Every batch has G episodes of every secret. The loss is `policy_loss` over the tokens that the policy wrote, divided by
a constant, with leave-one-out advantages and one update per batch: so the expected step is the gradient of the reward.
"""

from dataclasses import dataclass, field

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from grpo_lab.advantages import TURN_ADVANTAGES
from grpo_lab.base.checks import check_at_least, check_choice, check_positive
from grpo_lab.logprobs import token_logprobs
from grpo_lab.objective import aggregate, policy_loss
from grpo_lab.toys.guess.episodes import greedy_reward, sample_episodes
from grpo_lab.toys.guess.exact import secret_episodes, win_probability
from grpo_lab.toys.guess.policy import GuessPolicy
from grpo_lab.toys.guess.world import PAD, GuessWorld, episode_rewards, policy_mask, turn_states

GROUPS = ("one secret", "mixed secrets")


@dataclass
class GuessRun:
    """The result of training: the policy, and the exact reward along the way.

    rewards: expected reward of the policy that samples; greedy: of the most likely guesses. Both after `steps`.
    """

    policy: GuessPolicy
    steps: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    greedy: list[float] = field(default_factory=list)


def entropy_bonus(logits: Float[Tensor, "B T V"], mask: Bool[Tensor, "B T"], max_length: int) -> Float[Tensor, ""]:
    r"""Entropy of the policy at its own tokens, divided as "dr_grpo" divides the loss; to be maximised.

    H = -\frac{1}{B \, T_{\max}} \sum_{b,t} m_{b,t} \sum_v \pi_{b,t,v} \log \pi_{b,t,v} \tag{11.4}

    Args:
        logits: of every token; -inf is allowed.
        mask: m, True at the tokens that the policy wrote.
        max_length: T_max, the most tokens that the policy can write.
    """
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0)).sum(-1)
    bonus = aggregate(entropy, mask, "dr_grpo", max_length)  # scalar (11.4)
    return bonus


def batch_advantages(
    world: GuessWorld, tokens: Int[Tensor, "B T"], num_generations: int, groups: str, credit: str
) -> Float[Tensor, "B K"]:
    """The advantage of each turn. The batch has G rows of every secret, one secret after the other.

    groups: "one secret": the G episodes of a secret share a baseline. "mixed secrets": as many groups of G, in which
    the secrets take turns: 1, 2, 3 ... n, 1, 2 ...
    """
    rows = torch.arange(len(tokens))
    if groups == "mixed secrets":
        rows = rearrange(rows, "(S G) -> (G S)", G=num_generations)
    parts = (episode_rewards(world, tokens), policy_mask(tokens)[:, ::2], turn_states(world, tokens))
    grouped = [rearrange(values[rows], "(P G) K -> P G K", G=num_generations) for values in parts]
    advantages = torch.empty_like(parts[0])
    advantages[rows] = rearrange(TURN_ADVANTAGES[credit].compute(*grouped), "P G K -> (P G) K")
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
    credit: str = "trajectory",
    train_words: bool = False,
    eval_every: int = 20,
) -> GuessRun:
    """Train a policy from random weights.

    Args:
        world: numbers and guesses.
        seed: of the weights and of all that is sampled.
        steps: batches, one update each.
        num_generations: G, episodes of each secret in a batch.
        learning_rate: of AdamW; the norm of the gradient is clipped at 1.
        entropy_weight: of `entropy_bonus`.
        groups, credit: which episodes share a baseline, of `GROUPS`; which entry of `TURN_ADVANTAGES`.
        train_words: train on the environment's tokens as well, as if the policy had written them: a mistake.
        eval_every: steps between two measurements.
    """
    check_choice("groups", groups, GROUPS)
    check_choice("credit", credit, TURN_ADVANTAGES)
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
            advantages = batch_advantages(world, tokens, num_generations, groups, credit)
            loss = guess_loss(run.policy, tokens, advantages, entropy_weight, train_words)
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
    train_words: bool = False,
) -> Float[Tensor, ""]:
    """The loss of a batch: `policy_loss` over the policy's own tokens, less the entropy bonus."""
    episodes, index = tokens.unique(dim=0, return_inverse=True)  # equal episodes are read once
    logits = policy(episodes)
    logp = token_logprobs(logits, episodes)[index]
    mask = tokens != PAD if train_words else policy_mask(tokens)
    token_advantages = repeat(advantages, "B K -> B (K two)", two=2)
    length = tokens.shape[1] if train_words else tokens.shape[1] // 2
    loss, _ = policy_loss(logp, token_advantages, mask, loss_type="dr_grpo", max_completion_length=length)
    if entropy_weight:
        loss = loss - entropy_weight * entropy_bonus(logits[index], policy_mask(tokens), policy.world.guesses)
    return loss


def _measure(run: GuessRun, step: int) -> None:
    with torch.no_grad():
        run.steps.append(step)
        run.rewards.append(win_probability(run.policy).item())
        run.greedy.append(greedy_reward(run.policy))


def expected_step(policy: GuessPolicy, train_words: bool = False) -> Float[Tensor, " N"]:
    """The exact mean of the gradient that a batch of one-secret groups ascends, in all parameters, as one vector.

    Summed over all episodes of all secrets. It is the gradient of `win_probability`; with `train_words` it is not.
    """
    every = [secret_episodes(policy, secret) for secret in range(1, policy.world.numbers + 1)]
    tokens = torch.cat([episodes.tokens for episodes in every])
    weights = [e.probability * (e.rewards - e.probability @ e.rewards) / len(every) for e in every]
    advantages = repeat(torch.cat(weights).to(policy.head.weight), "B -> B K", K=policy.world.guesses)
    trained_tokens = tokens.shape[1] if train_words else policy.world.guesses  # per row: the divisor of the loss
    gain = -guess_loss(policy, tokens, advantages, train_words=train_words) * len(tokens) * trained_tokens
    parameters = list(policy.parameters())
    return nn.utils.parameters_to_vector(torch.autograd.grad(gain, parameters, materialize_grads=True))
