"""Right answers to the exercises of notebook 04, each written differently; the check has to accept them all."""

import torch
from torch.nn.functional import kl_div


def estimate_by_surrogate(logp, ref_logp, estimator="k3"):
    """k3+ as a value, and a term of value zero whose slope is -d."""
    d = (ref_logp - logp).detach()
    live = logp - logp.detach()
    if estimator == "k1":
        return -d + live
    if estimator == "k2":
        return d.square() / 2 - d * live
    slope = d if estimator == "k3+" else d.expm1()
    return d.expm1() - d - slope * live


def exact_by_kl_div(logits, ref_logits):
    logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    return kl_div(ref_logp, logp, reduction="none", log_target=True).sum(-1)


def charge_by_loops(rewards, logp, ref_logp, mask, beta):
    charged = []
    for b, reward in enumerate(rewards):
        kept = mask[b]
        kl = sum(logp[b][kept].tolist()) - sum(ref_logp[b][kept].tolist())
        charged.append(reward - beta * kl)
    return torch.stack(charged)


RIGHT = {
    "kl_estimate": (estimate_by_surrogate,),
    "kl_exact": (exact_by_kl_div,),
    "kl_in_reward": (charge_by_loops,),
}
