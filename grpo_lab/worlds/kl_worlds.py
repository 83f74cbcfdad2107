r"""Worlds in which the KL estimators can be judged exactly: two Gaussians, and policies that choose one of V answers.

With few answers nothing needs to be sampled to know the truth: expectations are sums, and the policy that a penalty
leads to has a closed form. Axes: S runs side by side (seeds or starting points), V answers, G samples a step.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.advantages import rloo_advantages
from grpo_lab.checks import check_choice, check_positive
from grpo_lab.kl import ESTIMATORS, kl_estimate, kl_in_reward
from grpo_lab.objective import policy_loss

RATIO_WEIGHTED = {"r*k1": "k1", "r*k2": "k2", "r*k3": "k3"}
PENALTIES = (*ESTIMATORS, *RATIO_WEIGHTED, "k1 in reward")


def gaussian_moments(mu: Float[Tensor, "*M"]) -> dict[str, tuple[Float[Tensor, "*M"], Float[Tensor, "*M"]]]:
    r"""Mean and standard deviation of the estimators when x is drawn from N(0, 1) and the reference is N(mu, 1).

    \mathrm{KL} = \tfrac{1}{2} \mu^2 \tag{4.20}
    \mathrm{E}[k_2] = \mathrm{KL} + \tfrac{1}{8} \mu^4 \tag{4.21}
    \mathrm{Var}[k_1] = \mu^2 \tag{4.22}
    \mathrm{Var}[k_2] = \tfrac{1}{2} \mu^4 + \tfrac{1}{4} \mu^6 \tag{4.23}
    \mathrm{Var}[k_3] = (e^{\mu^2} - 1) - \mu^2 \tag{4.24}

    Returns:
        "k1", "k2", "k3" -> (mean, standard deviation). The mean of k1 is the true KL.

    Source: d = mu x - mu^2 / 2 is normal with mean -mu^2 / 2 and variance mu^2; the moments follow from those of a
    normal and a log-normal variable.
    """
    kl = mu**2 / 2  # M (4.20)
    mean_k2 = kl + mu**4 / 8  # M (4.21)
    var_k1 = mu**2  # M (4.22)
    var_k2 = mu**4 / 2 + mu**6 / 4  # M (4.23)
    var_k3 = (mu**2).expm1() - mu**2  # M (4.24)
    return {"k1": (kl, var_k1.sqrt()), "k2": (mean_k2, var_k2.sqrt()), "k3": (kl, var_k3.sqrt())}


def enumerated_moments(
    logits: Float[Tensor, "N V"], ref_logits: Float[Tensor, "N V"], estimator: str
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    r"""Mean and standard deviation of an estimator over N positions of a language model, without sampling a token.

    m = \frac{1}{N} \sum_n \sum_v \pi_{n,v} \, k_{n,v} \tag{4.25}
    s^2 = \frac{1}{N} \sum_n \sum_v \pi_{n,v} \, k_{n,v}^2 - m^2 \tag{4.26}

    At every position each of the V words counts by its probability: what the sampled mean and spread would be if each
    position were sampled for ever.
    """
    logp = logits.log_softmax(-1)
    k = kl_estimate(logp, ref_logits.log_softmax(-1), estimator)
    mean = (logp.exp() * k).sum(-1).mean()  # scalar (4.25)
    variance = (logp.exp() * k.square()).sum(-1).mean() - mean.square()  # scalar (4.26)
    return mean, variance.sqrt()


def penalty(
    logp: Float[Tensor, "B T"], ref_logp: Float[Tensor, "B T"], kind: str, old_logp: Float[Tensor, "B T"] | None = None
) -> Float[Tensor, "B T"]:
    r"""A term of the loss, at each sampled token, for each way to charge the KL.

    r_{b,t} = \exp(\log \pi_{b,t} - \mathrm{sg}[\log \pi^{\mathrm{old}}_{b,t}]) \tag{4.27}
    c_{\text{r*k}} = r \, k \tag{4.28}
    c_{\text{k1 in reward}} = r \; \mathrm{sg}[\log \pi^{\mathrm{old}} - \log \pi^{\mathrm{ref}}] \tag{4.29}

    Args:
        logp: attached to the policy.
        ref_logp: of the reference.
        kind: one of `PENALTIES`. "k1" to "k3+" are those of `kl_estimate`, as they stand; "r*k1" to "r*k3" carry the
            ratio. "k1 in reward" is the loss of the policy gradient for the reward -k1, which is charged once, when the
            token is sampled.
        old_logp: under the policy that sampled the tokens; None means the policy itself (ratio 1).

    Source: r*k3: TRL's use_bias_correction_kl, from "DeepSeek-V3.2" (2025); k1 in the reward: Ziegler et al. (2019).
    """
    check_choice("kind", kind, PENALTIES)
    if kind in ESTIMATORS:
        return kl_estimate(logp, ref_logp, kind)
    old_logp = (logp if old_logp is None else old_logp).detach()
    ratio = (logp - old_logp).exp()  # B T (4.27)
    if kind in RATIO_WEIGHTED:
        return ratio * kl_estimate(logp, ref_logp, RATIO_WEIGHTED[kind])  # B T (4.28)
    return ratio * kl_estimate(old_logp, ref_logp, "k1")  # B T (4.29)


def expected_penalty(
    logits: Float[Tensor, "S V"],
    ref_logits: Float[Tensor, "#S V"],
    kind: str,
    old_logits: Float[Tensor, "#S V"] | None = None,
) -> Float[Tensor, " S"]:
    r"""What does a sampled penalty amount to on average, in value and gradient? A sum over all V answers.

    \bar C = \sum_v \mathrm{sg}[\pi^{\mathrm{old}}_v] \, c_v \tag{4.30}

    The probability is stopped, as it is in training: samples are drawn, then the loss is differentiated. `old_logits`
    are those of the policies that sample; None means the policies themselves.
    """
    logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1).expand_as(logits)
    old_logp = logp.detach() if old_logits is None else old_logits.detach().log_softmax(-1).expand_as(logits)
    expected = (old_logp.exp() * penalty(logp, ref_logp, kind, old_logp)).sum(-1)  # S (4.30)
    return expected


def sampled_penalty(
    logits: Float[Tensor, "S V"],
    ref_logits: Float[Tensor, "#S V"],
    kind: str,
    num_samples: int,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " S"]:
    r"""The same from G = `num_samples` answers of the policy itself, as in training with one update a batch.

    \hat C = \frac{1}{G} \sum_i c_{y_i}, \quad y_i \sim \pi \tag{4.31}
    """
    _, logp, ref_logp = _draw_answers(logits, ref_logits, num_samples, generator)
    estimate = penalty(logp, ref_logp, kind).mean(-1)  # S (4.31)
    return estimate


def descend(
    parameters: Float[Tensor, "S K"],
    ref_logits: Float[Tensor, "#S V"],
    kind: str,
    *,
    steps: int,
    lr: float,
    family: Callable[[Tensor], Tensor] | None = None,
    num_samples: int | None = None,
    old_logits: Float[Tensor, "#S V"] | None = None,
    seed: int = 0,
) -> Float[Tensor, "S N K"]:
    """Train policies by plain gradient descent with a penalty as their only loss: where does it lead?

    Args:
        parameters: of S policies.
        family: turns parameters (S, K) into logits (S, V); None takes them as logits.
        num_samples: G for sampled gradients; None means the expected gradient, without noise.
        old_logits: of policies that do all the sampling, as if one batch were used for ever; only with the expected
            gradient. None: each step, the policy as it is.
        seed: of the samples.

    Returns:
        The parameters at the start and after each step, N = steps + 1.
    """
    generator, path = torch.Generator().manual_seed(seed), [parameters.detach()]
    for _ in range(steps):
        theta = path[-1].clone().requires_grad_()
        logits = theta if family is None else family(theta)
        if num_samples is None:
            cost = expected_penalty(logits, ref_logits, kind, old_logits)
        else:
            cost = sampled_penalty(logits, ref_logits, kind, num_samples, generator)
        path.append((theta - lr * torch.autograd.grad(cost.sum(), theta)[0]).detach())
    return torch.stack(path, dim=1)


def best_policy(
    rewards: Float[Tensor, "*S V"], ref_logits: Float[Tensor, "*S V"], beta: float
) -> Float[Tensor, "*S V"]:
    r"""Log-probabilities of the policy that maximises E[R] - beta KL(pi || ref), for a beta greater than 0.

    \log \pi^{\star} = \log \mathrm{softmax}\big( \ell^{\mathrm{ref}} + R / \beta \big) \tag{4.32}

    Each answer's probability under the reference, times e^(R / beta), normalised.

    Source: for example Rafailov et al. (2023), "Direct preference optimization", equation 4.
    """
    check_positive("beta", beta)
    best = (ref_logits + rewards / beta).log_softmax(-1)  # S V (4.32)
    return best


def best_policy_forward(
    rewards: Float[Tensor, " V"], ref_logits: Float[Tensor, " V"], beta: float
) -> Float[Tensor, " V"]:
    r"""Log-probabilities of the policy that maximises E[R] - beta KL(ref || pi), for a beta greater than 0.

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
    without KL; kind is as in `penalty`. Returns log-probabilities at the start and after each step, N = steps + 1.
    """
    check_choice("kind", kind, PENALTIES)
    generator = torch.Generator().manual_seed(seed)
    logits = ref_logits.expand(runs, -1)
    history = [logits.log_softmax(-1)]
    for _ in range(steps):
        logits = logits.detach().requires_grad_()
        answers, logp, ref_logp = _draw_answers(logits, ref_logits[None], num_generations, generator)
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


def _draw_answers(logits, ref_logits, num_samples, generator):
    """G answers of each policy, and their log-probabilities under policy and reference, each (S, G)."""
    logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1).expand_as(logits)
    answers = torch.multinomial(logp.detach().exp(), num_samples, replacement=True, generator=generator)
    return answers, logp.gather(-1, answers), ref_logp.gather(-1, answers)
