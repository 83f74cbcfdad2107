r"""One prompt, one token, V answers: training with a KL penalty, and the policies that it should lead to."""

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.advantages import rloo_advantages
from grpo_lab.checks import check_at_least, check_choice, check_positive
from grpo_lab.kl import kl_in_reward
from grpo_lab.objective import policy_loss
from grpo_lab.worlds.kl_worlds.penalties import PENALTIES, RATIO_WEIGHTED, draw_answers


def best_policy(
    rewards: Float[Tensor, "*S V"], ref_logits: Float[Tensor, "*S V"], beta: float
) -> Float[Tensor, "*S V"]:
    r"""Log-probabilities of the policy that maximises E[R] - beta KL(pi || ref).

    \log \pi^{\star} = \log \mathrm{softmax}\big( \ell^{\mathrm{ref}} + R / \beta \big) \tag{4.32}

    Each answer's probability under the reference, times e^(R / beta), normalised.

    Args:
        rewards: R of each answer.
        ref_logits: logits (or log-probabilities) of the reference.
        beta: greater than 0.

    Source: for example Rafailov et al. (2023), "Direct preference optimization", equation 4.
    """
    check_positive("beta", beta)
    best = (ref_logits + rewards / beta).log_softmax(-1)  # S V (4.32)
    return best


def best_policy_forward(
    rewards: Float[Tensor, " V"], ref_logits: Float[Tensor, " V"], beta: float
) -> Float[Tensor, " V"]:
    r"""Log-probabilities of the policy that maximises E[R] - beta KL(ref || pi).

    \pi^{\circ}_v = \beta \, \pi^{\mathrm{ref}}_v \, / \, (c - R_v) \tag{4.33}

    c is the number above all rewards that makes the probabilities sum to one; it is found by bisection.

    Source: set the derivative of E[R] - beta KL(ref || pi) + c (1 - sum pi) by pi_v to zero.
    """
    check_positive("beta", beta)
    ref = ref_logits.softmax(-1)
    low, high = rewards.max(), rewards.max() + beta
    for _ in range(100):
        c = (low + high) / 2
        best = beta * ref / (c - rewards)  # V (4.33)
        low, high = (c, high) if best.sum() > 1 else (low, c)
    return best.log()


def train_bandit(
    rewards: Float[Tensor, " V"],
    ref_logits: Float[Tensor, " V"],
    kind: str,
    beta: float,
    *,
    steps: int,
    lr: float,
    num_generations: int,
    runs: int,
    seed: int = 0,
) -> Float[Tensor, "S N V"]:
    """Train `runs` policies, which begin at the reference, with `policy_loss`: one prompt, one token, V answers.

    The advantages are those of RLOO, whose gradient is exactly that of the expected reward. beta = 0 is training
    without KL; kind is as in `penalty`.

    Returns:
        Log-probabilities at the start and after each step, shape (runs, steps + 1, V).
    """
    check_choice("kind", kind, PENALTIES)
    check_at_least("beta", beta, 0)
    generator = torch.Generator().manual_seed(seed)
    logits = ref_logits.expand(runs, -1)
    history = [logits.log_softmax(-1)]
    for _ in range(steps):
        logits = logits.detach().requires_grad_()
        answers, logp, ref_logp = draw_answers(logits, ref_logits[None], num_generations, generator)
        loss = _bandit_loss(rewards[answers], logp, ref_logp, kind, beta)
        logits = logits - lr * torch.autograd.grad(runs * loss, logits)[0]
        history.append(logits.detach().log_softmax(-1))
    return torch.stack(history, dim=1)


def _bandit_loss(rewards, logp, ref_logp, kind, beta):
    """rewards, logp, ref_logp: (S, G). To `policy_loss` they are S*G completions of one token."""
    runs, (logp, ref_logp) = rewards.shape, (x.reshape(-1, 1) for x in (logp, ref_logp))
    mask = torch.ones_like(logp, dtype=torch.bool)
    if kind == "k1 in reward":
        rewards, beta = kl_in_reward(rewards.flatten(), logp, ref_logp, mask, beta).reshape(runs), 0.0
    advantages = rloo_advantages(rewards).flatten()
    correct = kind in RATIO_WEIGHTED
    estimator = RATIO_WEIGHTED.get(kind, kind) if beta else "k3"
    loss, _ = policy_loss(
        logp, advantages, mask, None, ref_logp, beta=beta, kl_estimator=estimator, kl_bias_correction=correct
    )
    return loss
