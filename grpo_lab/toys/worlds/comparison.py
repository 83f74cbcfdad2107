r"""Measures of losses, for notebooks 05 and 05b: the weight of a token, and how hard it is pushed.

A loss is known by its gradient, and every loss of `objective` reaches the model through the log-probabilities of the
sampled tokens alone. So losses are compared there: one number a token, before the network mixes them.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_lab.objective import aggregate, policy_loss


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
    r"""What is the factor on a token's push, now that the policy has moved away from the one that sampled?

    g_{b,t} = p_{b,t} \, / \, p_{b,t}\big\rvert_{\pi^{\mathrm{old}} = \pi} \tag{5.31}

    Normalisation and advantage cancel, so the gates of different losses can be set side by side. For use without a
    KL term. Arguments as in `policy_loss`. The gate is 1 at ratio 1, may exceed 1, and is zero where there is no push
    to compare with (masked, or an advantage of zero).
    """
    push, _, _ = token_push(logp, advantages, mask, old_logp, **settings)
    on_policy, _, _ = token_push(logp, advantages, mask, None, **settings)
    gate = torch.where(on_policy != 0, push / on_policy, 0)  # B T (5.31)
    return gate


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
