r"""What notebook 05 measures losses with: how hard each token is pushed, and what a change of convention does to it.

A loss is known by its gradient, and every loss of `objective` reaches the model through the log-probabilities of the
sampled tokens alone. So losses are compared there: one number a token, before the network mixes them.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_lab.objective import LOSSES_BY_TOKENS, aggregate, clipped_surrogate, policy_loss


def token_push(
    logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    mask: Bool[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"] | None = None,
    **settings,
) -> tuple[Float[Tensor, "B T"], float, dict[str, float]]:
    r"""How hard does the loss push each sampled token up, or down if negative?

    p_{b,t} = -\frac{\partial L}{\partial \log \pi_{b,t}} \tag{5.30}

    Arguments as in `policy_loss`. Returns the push, zero at masked positions; the loss; the metrics.
    """
    leaf = logp.detach().clone().requires_grad_()
    loss, metrics = policy_loss(leaf, advantages, mask, old_logp, **settings)
    push = -torch.autograd.grad(loss, leaf)[0]  # B T (5.30)
    return push, loss.item(), metrics


def token_gate(
    logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    mask: Bool[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    **settings,
) -> Float[Tensor, "B T"]:
    r"""Which part of its push does a token keep, now that the policy has moved away from the one that sampled?

    g_{b,t} = p_{b,t} \, / \, p_{b,t}\big\rvert_{\pi^{\mathrm{old}} = \pi} \tag{5.31}

    Normalisation and advantage cancel, so the gates of different losses can be set side by side. For use without a
    KL term. Arguments as in `policy_loss`. The gate is 1 at ratio 1, and zero where there is no push to compare with
    (masked, or an advantage of zero).
    """
    push, _, _ = token_push(logp, advantages, mask, old_logp, **settings)
    on_policy, _, _ = token_push(logp, advantages, mask, None, **settings)
    gate = torch.where(on_policy != 0, push / on_policy, 0)  # B T (5.31)
    return gate


def dual_clip_surrogate(
    ratio: Float[Tensor, "B #T"], advantages: Float[Tensor, "B #T"], c: float = 3.0
) -> Float[Tensor, "B #T"]:
    r"""The clipped surrogate with a floor where A < 0, as verl computes it.

    S^{\mathrm{dual}}_{b,t} = \max(S_{b,t},\; c A_{b,t}) \;\text{if}\; A_{b,t} < 0, \;\text{else}\; S_{b,t} \tag{5.32}

    Ratio and A as in `clipped_surrogate`, with its usual epsilon; c is greater than 1, verl's `clip_ratio_c`.

    Source: Ye et al. (2020), "Mastering complex control in MOBA games with deep reinforcement learning", equation 5.
    """
    surrogate = clipped_surrogate(ratio, advantages)
    floored = torch.where(advantages < 0, torch.max(surrogate, c * advantages), surrogate)  # B T (5.32)
    return floored


def token_weights(
    mask: Bool[Tensor, "B T"], loss_type: str, max_completion_length: int | None = None
) -> Float[Tensor, "B T"]:
    r"""How much does one token count in the loss, before ratio and advantage?

    \omega_{b,t} = \frac{\partial L}{\partial v_{b,t}} \tag{5.33}

    Arguments as in `aggregate`. Zero at masked positions.
    """
    values = torch.ones(mask.shape, requires_grad=True)
    loss = aggregate(values, mask, loss_type, max_completion_length)
    weights = torch.autograd.grad(loss, values)[0]  # B T (5.33)
    return weights


def push_in_parts(
    logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"],
    rows_at_once: int,
    count_tokens: bool = True,
    **settings,
) -> Float[Tensor, "B T"]:
    r"""The push of one update whose rows did not fit on the device at once: losses of K parts, added up.

    w_k = 1 \;\text{if}\; L_k \;\text{is divided by}\; N, \;\text{else}\; B_k / B \tag{5.34}
    L = \sum_k w_k L_k \tag{5.35}

    Args:
        logp, advantages, mask, settings: as in `policy_loss`, of the whole update.
        rows_at_once: rows of a part; the last one may be smaller.
        count_tokens: give "dapo" and its like N, the tokens of the whole update. False is the mistake: each part then
            divides by its own tokens, and the result depends on how the update was cut.

    Returns:
        As from `token_push`.
    """
    leaf = logp.detach().clone().requires_grad_()
    by_tokens = count_tokens and settings.get("loss_type") in LOSSES_BY_TOKENS
    total = torch.zeros(())
    for rows in torch.arange(len(mask)).split(rows_at_once):
        num_items = mask.sum() if by_tokens else None
        loss, _ = policy_loss(leaf[rows], advantages[rows], mask[rows], num_items=num_items, **settings)
        weight = 1.0 if by_tokens else len(rows) / len(mask)  # scalar (5.34)
        total = total + weight * loss  # scalar (5.35)
    return -torch.autograd.grad(total, leaf)[0]
