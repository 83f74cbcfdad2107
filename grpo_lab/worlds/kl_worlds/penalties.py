r"""The ways to charge the KL as a term of the loss: what each amounts to on average, and where it leads."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.checks import check_choice
from grpo_lab.kl import ESTIMATORS, kl_estimate

RATIO_WEIGHTED = {"r*k1": "k1", "r*k2": "k2", "r*k3": "k3"}
PENALTIES = (*ESTIMATORS, *RATIO_WEIGHTED, "k1 in reward")


def penalty(
    logp: Float[Tensor, "B T"], ref_logp: Float[Tensor, "B T"], kind: str, old_logp: Float[Tensor, "B T"] | None = None
) -> Float[Tensor, "B T"]:
    r"""A term of the loss, at each sampled token, for each way to charge the KL.

    r_{b,t} = \exp(\log \pi_{b,t} - \mathrm{sg}[\log \pi^{\mathrm{old}}_{b,t}]) \tag{4.27}
    c_{\text{r*k}} = r \, k \tag{4.28}
    c_{\text{k1 in reward}} = r \; \mathrm{sg}[\log \pi^{\mathrm{old}} - \log \pi^{\mathrm{ref}}] \tag{4.29}

    Args:
        logp: attached to the policy, shape (B, T).
        ref_logp: shape (B, T).
        kind: one of `PENALTIES`. "k1" to "k3+" are those of `kl_estimate`, as they stand; "r*k1" to "r*k3" carry the
            ratio. "k1 in reward" is the loss of the policy gradient for the reward -k1, which is charged once, when the
            token is sampled.
        old_logp: under the policy that sampled the tokens, shape (B, T); None means the policy itself (ratio 1).

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

    The probability is stopped, as it is in training: samples are drawn, then the loss is differentiated.

    Args:
        logits: of S policies, shape (S, V).
        ref_logits: shape (S, V) or (1, V).
        kind: as in `penalty`.
        old_logits: of the policies that sample, shape (S, V) or (1, V); None means the policies themselves.
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
    r"""The same from G sampled answers of the policy itself, as in training with one update a batch.

    \hat C = \frac{1}{G} \sum_i c_{y_i}, \quad y_i \sim \pi \tag{4.31}

    Arguments as in `expected_penalty`; num_samples is G.
    """
    _, logp, ref_logp = draw_answers(logits, ref_logits, num_samples, generator)
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
        parameters: theta of S policies, shape (S, K).
        family: turns parameters (S, K) into logits (S, V); None takes them as logits.
        num_samples: G for sampled gradients; None means the expected gradient, without noise.
        old_logits: of policies that do all the sampling, as if one batch were used for ever; only with the expected
            gradient. None: each step, the policy as it is.
        seed: of the samples.

    Returns:
        The parameters at the start and after each step, shape (S, steps + 1, K).

    Raises:
        ValueError: for old_logits together with sampled gradients.
    """
    if old_logits is not None and num_samples is not None:
        raise ValueError(f"num_samples is {num_samples}; expected None, since old_logits is given")
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


def draw_answers(logits, ref_logits, num_samples, generator):
    """G answers of each policy, and their log-probabilities under policy and reference, each (S, G)."""
    logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1).expand_as(logits)
    answers = torch.multinomial(logp.detach().exp(), num_samples, replacement=True, generator=generator)
    return answers, logp.gather(-1, answers), ref_logp.gather(-1, answers)
