r"""The KL divergence from the reference policy: the estimators k1, k2, k3 and k3+, and the exact value.

An estimator has to be judged twice. As a *value*, k1 and k3 both estimate KL(pi || ref) without bias. As a term of a
*loss*, only its gradient counts. On average the gradient of k1 is zero, and the gradient of k3 is that of the other KL,
KL(ref || pi). Only k2 and k3+ have the gradient of KL(pi || ref) on average. Notebook 04 shows each by exact
enumeration.

Invalid arguments raise a ValueError that names the argument.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_lab.base.checks import check_at_least, check_choice, check_dtype, check_shapes

ESTIMATORS = ("k1", "k2", "k3", "k3+")


def kl_estimate(
    logp: Float[Tensor, "B T"], ref_logp: Float[Tensor, "B T"], estimator: str = "k3"
) -> Float[Tensor, "B T"]:
    r"""Estimate KL(pi || ref) at each sampled token from the two log-probabilities of that token alone.

    d_{b,t} = \log \pi^{\mathrm{ref}}_{b,t} - \log \pi_{b,t} \tag{4.7}
    k_1 = -d \tag{4.8}
    k_2 = \tfrac{1}{2} d^2 \tag{4.9}
    k_3 = (e^{d} - 1) - d \tag{4.10}
    k_{3+} = k_2 - \mathrm{sg}[k_2] + \mathrm{sg}[k_3] \tag{4.11}

    Args:
        logp: Log-probabilities of the tokens under the policy. The estimate is unbiased only if it sampled the tokens.
        ref_logp: Log-probabilities of the tokens under the reference; no gradient flows into them.
        estimator: "k1", "k2", "k3" or "k3+" (the value of k3 with the gradient of k2).

    Returns:
        The estimate in nats, never clamped. k1 may be negative; the others are at least 0, up to rounding.

    Source: Schulman (2020), "Approximating KL divergence" (k1, k2, k3 as values); their gradients: Tang and Munos
    (2025), "On a few pitfalls in KL divergence gradient estimation for RL".
    """
    check_choice("estimator", estimator, ESTIMATORS)
    check_shapes(logp=(logp, "B T"), ref_logp=(ref_logp, "B T"))
    d = ref_logp.detach() - logp  # B T (4.7)
    k1 = -d  # B T (4.8)
    if estimator == "k1":
        return k1
    k2 = d.square() / 2  # B T (4.9)
    if estimator == "k2":
        return k2
    k3 = d.expm1() - d  # B T (4.10)
    if estimator == "k3":
        return k3
    k3_plus = k2 - k2.detach() + k3.detach()  # B T (4.11)
    return k3_plus


def kl_exact(logits: Float[Tensor, "B T V"], ref_logits: Float[Tensor, "B T V"]) -> Float[Tensor, "B T"]:
    r"""Compute the exact KL(pi || ref) of the next-token distribution, over the whole vocabulary.

    \log \pi_{b,t,v} = \ell_{b,t,v} - \log \sum_w e^{\ell_{b,t,w}} \tag{4.3}
    \mathrm{KL}_{b,t} = \sum_v \pi_{b,t,v} \, (\log \pi_{b,t,v} - \log \pi^{\mathrm{ref}}_{b,t,v}) \tag{4.2}

    It needs the logits of both models for every word: V numbers per token, whereas the estimators need one.

    Args:
        logits: The logits of the policy: finite numbers, large ones too if the differences between those of a token are
            finite. A word whose probability is zero in floating point, under either policy, causes no NaN or infinity.
        ref_logits: The logits of the reference, under the same conditions. The gradient flows into both arguments.

    Returns:
        The KL of each token in nats, at least 0 up to rounding.
    """
    check_shapes(logits=(logits, "B T V"), ref_logits=(ref_logits, "B T V"))
    logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1)  # B T V (4.3)
    kl = (logp.exp() * (logp - ref_logp)).sum(-1)  # B T (4.2)
    return kl


def kl_in_reward(
    rewards: Float[Tensor, " B"],
    logp: Float[Tensor, "B T"],
    ref_logp: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    beta: float,
) -> Float[Tensor, " B"]:
    r"""Subtract the KL from the reward, as PPO for language models does, instead of adding it to the loss.

    R'_b = R_b - \beta \sum_t m_{b,t} \, \mathrm{sg}[\log \pi_{b,t} - \log \pi^{\mathrm{ref}}_{b,t}] \tag{4.16}

    Args:
        rewards: R, plain numbers, without a gradient.
        logp: Log-probabilities under the policy that sampled; no gradient flows into them.
        ref_logp: Log-probabilities under the reference; no gradient flows into them.
        mask: m, True at each token that is penalised. Values elsewhere have no effect, infinities and NaN included.
        beta: Weight of the penalty, at least 0.

    Source: Ziegler et al. (2019), "Fine-tuning language models from human preferences", equation 2.
    """
    check_at_least("beta", beta, 0)
    check_shapes(logp=(logp, "B T"), ref_logp=(ref_logp, "B T"), mask=(mask, "B T"), rewards=(rewards, "B"))
    check_dtype("mask", mask, "bool")
    penalised = rewards - beta * torch.where(mask, kl_estimate(logp, ref_logp, "k1"), 0).sum(-1).detach()  # B (4.16)
    return penalised
