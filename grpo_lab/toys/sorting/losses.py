"""The update weights of responses and the losses of the sorting task, built from `advantages`, `objective` and `kl`."""

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
    """Compute the weight of each response in the update.

    Args:
        rewards: The rewards of the responses.
        mode: "raw" for the reward itself; "centred" for the reward minus the mean of its group; "normalised", as in
            GRPO, for the latter divided by the group's standard deviation.
    """
    check_choice("mode", mode, UPDATE_WEIGHTS)
    if mode == "raw":
        return rewards
    return group_advantages(rewards, scale="none" if mode == "centred" else "group")


def surrogate_loss(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    loss: str = "clipped",
    epsilon: float = 0.2,
) -> Float[Tensor, ""]:
    r"""Compute one of three losses, which have the same gradient at the first inner step and different ones afterwards.

    L_{\text{naive}} = -\frac{1}{B T} \sum_{b,t} A_b \log \pi_{b,t} \tag{3.7}
    L_{\text{unclipped}} = -\frac{1}{B T} \sum_{b,t} r_{b,t} \, A_b \tag{3.8}
    L_{\text{clipped}} = -\frac{1}{B T} \sum_{b,t} \min\big( r_{b,t} \, A_b,\; \bar r_{b,t} \, A_b \big) \tag{3.6}

    r = \pi / \mathrm{sg}[\pi^{\mathrm{old}}] is the importance ratio; \bar r is r clipped to the range from
    1 - \epsilon to 1 + \epsilon. Notebook 05 has more on both. Every response has T numbers, so the mean over responses
    and the mean over numbers are the same here.

    Args:
        logp: \log \pi, the log-probabilities of the responses' numbers under the policy that is being trained.
        old_logp: \log \pi^{\mathrm{old}}, their log-probabilities under the policy that sampled them, recorded during
            sampling. They get no gradient.
        advantages: A, the update weight of each response.
        loss: Name of the loss: "naive", "unclipped" or "clipped".
        epsilon: \epsilon, the clip range of "clipped", from 0 to 1.

    Returns:
        The loss, a single number. r is computed from the difference of the log-probabilities, since a quotient of
        probabilities such as e^-800 and e^-801 would be 0 / 0.
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
    r"""Compute the KL penalty, a term of the loss that keeps the policy near the reference.

    K = \frac{\beta}{B T} \sum_{b,t} k_3(\log \pi_{b,t},\; \log \pi^{\mathrm{ref}}_{b,t}) \tag{3.14}

    k3 = (e^d - 1) - d, with d = \log \pi^{\mathrm{ref}} - \log \pi, is the estimator of low variance, Eq. (4.10);
    `kl_estimate(logp, ref_logp)` computes it. It is not clamped, however different policy and reference are.

    Args:
        logp: The log-probabilities of the responses' numbers under the policy that is being trained.
        ref_logp: Their log-probabilities under the reference. They get no gradient.
        beta: \beta, the weight of the penalty, at least 0.
    """
    check_at_least("beta", beta, 0)
    check_shapes(logp=(logp, "B T"), ref_logp=(ref_logp, "B T"))
    penalty = beta * kl_estimate(logp, ref_logp, "k3").mean()  # scalar (3.14)
    return penalty
