r"""Measures of losses, for notebooks 05 and 05b: the weight of a token, and its gradient coefficient.

A loss is known by its gradient, and every loss of `objective` reaches the model through the log-probabilities of the
sampled tokens alone. So losses are compared there: one number per token, before the network mixes them.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_lab.objective import aggregate, policy_loss


def gradient_coefficient(
    logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    mask: Bool[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"] | None = None,
    **settings,
) -> tuple[Float[Tensor, "B T"], float, dict[str, float]]:
    r"""The gradient coefficient of each sampled token: positive if a step makes it more likely, negative if less.

    c_{b,t} = -\frac{\partial L}{\partial \log \pi_{b,t}} \tag{5.17}

    Arguments as in `policy_loss`. Returns the coefficient, zero at masked positions; the loss; the metrics.
    """
    leaf = logp.detach().clone().requires_grad_()
    loss, metrics = policy_loss(leaf, advantages, mask, old_logp, **settings)
    coefficient = -torch.autograd.grad(loss, leaf)[0]  # B T (5.17)
    return coefficient, loss.item(), metrics


def gradient_weight(
    logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    mask: Bool[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    **settings,
) -> Float[Tensor, "B T"]:
    r"""The weight of a token's gradient now that the policy has moved: its coefficient over that at ratio 1.

    g_{b,t} = c_{b,t} \, / \, c_{b,t}\big\rvert_{\pi^{\mathrm{old}} = \pi} \tag{5.18}

    Normalisation and advantage cancel, so the weights of different losses can be set side by side. For use without a
    KL term. Arguments as in `policy_loss`. The weight is 1 at ratio 1, may exceed 1, and is zero where the coefficient
    at ratio 1 is zero (masked, or an advantage of zero).
    """
    coefficient, _, _ = gradient_coefficient(logp, advantages, mask, old_logp, **settings)
    on_policy, _, _ = gradient_coefficient(logp, advantages, mask, None, **settings)
    weight = torch.where(on_policy != 0, coefficient / on_policy, 0)  # B T (5.18)
    return weight


def token_weights(
    mask: Bool[Tensor, "B T"], loss_type: str, max_completion_length: int | None = None
) -> Float[Tensor, "B T"]:
    r"""Weight of one token in the loss, before its importance ratio and its advantage.

    \omega_{b,t} = \frac{\partial L}{\partial v_{b,t}} \tag{5.26}

    Arguments as in `aggregate`. Zero at masked positions.
    """
    values = torch.ones(mask.shape, requires_grad=True)
    loss = aggregate(values, mask, loss_type, max_completion_length)
    weights = torch.autograd.grad(loss, values)[0]  # B T (5.26)
    return weights
