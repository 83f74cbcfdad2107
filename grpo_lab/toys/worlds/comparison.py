r"""Measures that compare losses, for notebooks 05 and 05b: the weight of a token and its gradient coefficient.

Every loss of `objective` depends on the model only through the log-probabilities of the sampled tokens. So its gradient
with respect to these log-probabilities, one number per token, says everything about its effect on the model.
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
    r"""Compute the gradient coefficient of each sampled token: positive if a step makes the token more likely.

    c_{b,t} = -\frac{\partial L}{\partial \log \pi_{b,t}} \tag{5.17}

    The arguments are those of `policy_loss`.

    Returns:
        The coefficient c, which is zero at masked positions; the loss L; and the metrics of `policy_loss`, as floats.
    """
    variable_logp = logp.detach().clone().requires_grad_()
    loss, metrics = policy_loss(variable_logp, advantages, mask, old_logp, **settings)
    coefficient = -torch.autograd.grad(loss, variable_logp)[0]  # B T (5.17)
    return coefficient, loss.item(), {name: mean.item() for name, mean in metrics.items()}


def gradient_weight(
    logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    mask: Bool[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    **settings,
) -> Float[Tensor, "B T"]:
    r"""Compute the weight of each token's gradient: its gradient coefficient relative to the one at ratio 1.

    g_{b,t} = c_{b,t} \, / \, c_{b,t}\big\rvert_{\pi^{\mathrm{old}} = \pi} \tag{5.18}

    Normalisation and advantage cancel, so that the weights of different losses can be compared. The arguments are those
    of `policy_loss`; use it without a KL term.

    Returns:
        The weight g, which is 1 at ratio 1 and may exceed 1. It is zero if the coefficient at ratio 1 is zero, as at
        masked positions or with an advantage of zero.
    """
    coefficient, _, _ = gradient_coefficient(logp, advantages, mask, old_logp, **settings)
    on_policy, _, _ = gradient_coefficient(logp, advantages, mask, None, **settings)
    weight = torch.where(on_policy != 0, coefficient / on_policy, 0)  # B T (5.18)
    return weight


def token_weights(
    mask: Bool[Tensor, "B T"], loss_type: str, max_completion_length: int | None = None
) -> Float[Tensor, "B T"]:
    r"""Compute the weight of each token in the loss, without its importance ratio and its advantage.

    \omega_{b,t} = \frac{\partial L}{\partial v_{b,t}} \tag{5.26}

    Here v is the value that `aggregate` averages. The arguments are those of `aggregate`.

    Returns:
        The weight \omega, which is zero at masked positions.
    """
    values = torch.ones(mask.shape, requires_grad=True)
    loss = aggregate(values, mask, loss_type, max_completion_length)
    weights = torch.autograd.grad(loss, values)[0]  # B T (5.26)
    return weights
