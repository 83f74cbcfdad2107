"""The weights of responses, and the losses of the toy world, built from `advantages`, `objective` and `kl`."""

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.advantages import group_advantages
from grpo_lab.base.checks import check_at_least, check_between, check_choice, check_shapes
from grpo_lab.kl import kl_estimate
from grpo_lab.objective import aggregate, importance_ratio, policy_loss
from grpo_lab.policy_gradient import reinforce_loss, sequence_logprob

LOSSES = ("naive", "unclipped", "clipped")
UPDATE_WEIGHTS = ("raw", "centred", "normalised")


def update_weights(rewards: Float[Tensor, "P G"], mode: str = "normalised") -> Float[Tensor, "P G"]:
    """The weight of each response in the update: its reward, "raw", or what `group_advantages` makes of it.

    That is "centred" around the mean of its group, or also divided by the group's deviation, "normalised", as in GRPO.
    """
    check_choice("mode", mode, UPDATE_WEIGHTS)
    return rewards if mode == "raw" else group_advantages(rewards, scale="none" if mode == "centred" else "group")


def surrogate_loss(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    loss: str = "clipped",
    epsilon: float = 0.2,
) -> Float[Tensor, ""]:
    r"""Three losses with the same gradient at the first inner step, and different ones from the second on.

    L_{\text{naive}} = -\frac{1}{B T} \sum_{b,t} A_b \log \pi_{b,t} \tag{3.7}
    L_{\text{unclipped}} = -\frac{1}{B T} \sum_{b,t} r_{b,t} \, A_b \tag{3.8}
    L_{\text{clipped}} = -\frac{1}{B T} \sum_{b,t} \min\big( r_{b,t} \, A_b,\; \bar r_{b,t} \, A_b \big) \tag{3.6}

    r = \pi / \mathrm{sg}[\pi^{\mathrm{old}}] is the importance ratio; \bar r is r clipped to the range from
    1 - \epsilon to 1 + \epsilon. Notebook 05 has more on both. Every response has T numbers, so the mean over responses
    and the mean over numbers are the same here.

    Args:
        logp: log-probabilities under the policy that is being trained.
        old_logp: the same under the policy that sampled, stored then; no gradient flows into them.
        advantages: A, the update weights.
        loss: "naive", "unclipped" or "clipped".
        epsilon: clip range of "clipped", from 0 to 1.

    Returns:
        One number. Form r from the difference of the log-probabilities, so that e^-800 over e^-801 does not become
            0 / 0.
    """
    check_choice("loss", loss, LOSSES)
    check_between("epsilon", epsilon, 0, 1)
    check_shapes(logp=(logp, "B T"), old_logp=(old_logp, "B T"), advantages=(advantages, "B"))
    mask = torch.ones_like(logp, dtype=torch.bool)
    if loss == "naive":
        return reinforce_loss(sequence_logprob(logp, mask) / logp.shape[1], advantages)  # scalar (3.7)
    if loss == "unclipped":
        return aggregate(-importance_ratio(logp, old_logp, mask) * advantages[:, None], mask, "grpo")  # scalar (3.8)
    return policy_loss(logp, advantages, mask, old_logp, epsilon=epsilon)[0]  # scalar (3.6)


def kl_penalty(logp: Float[Tensor, "B T"], ref_logp: Float[Tensor, "B T"], beta: float) -> Float[Tensor, ""]:
    r"""The penalty on moving away from the reference; added to the loss.

    K = \frac{\beta}{B T} \sum_{b,t} k_3(\log \pi_{b,t},\; \log \pi^{\mathrm{ref}}_{b,t}) \tag{3.14}

    k3 = (e^d - 1) - d, with d = \log \pi^{\mathrm{ref}} - \log \pi, is the estimator of low variance, Eq. (4.10), and
    `kl_estimate(logp, ref_logp)` computes it. It is not clamped, however far apart the two are.

    Args:
        logp: log-probabilities under the policy that is being trained.
        ref_logp: under the reference; no gradient flows into them.
        beta: weight of the penalty, at least 0.
    """
    check_at_least("beta", beta, 0)
    check_shapes(logp=(logp, "B T"), ref_logp=(ref_logp, "B T"))
    penalty = beta * kl_estimate(logp, ref_logp, "k3").mean()  # scalar (3.14)
    return penalty
