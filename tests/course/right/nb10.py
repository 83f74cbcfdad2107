"""Right answers to the exercises of notebook 10, each written differently; the check has to accept them all."""

import torch


def weights_as_quotient(logp, sampler_logp, mask, level="token"):
    """Products and quotients of exponentials, in logarithms only where a sequence needs it."""
    moved = (logp - sampler_logp).detach().masked_fill(~mask, 0.0)
    return torch.exp(moved if level == "token" else (moved @ torch.ones_like(moved[0]))[:, None])


def truncated_by_where(weights, cap=3.0, mode="truncate"):
    above = weights > cap
    return torch.where(above, cap if mode == "truncate" else 0.0, weights).to(weights.dtype)


def bubble_by_sorting(lengths, slots):
    ends = [0] * slots
    for n in lengths.tolist():
        ends = [*sorted(ends)[1:], min(ends) + n]
    return sum(max(ends) - end for end in ends) / (slots * max(ends))


def sync_in_bytes(parameters, links, gigabits=400, bytes_each=2):
    return parameters * bytes_each / links / (gigabits / 8) / 1e9


RIGHT = {
    "importance_weights": (weights_as_quotient,),
    "truncate_weights": (truncated_by_where,),
    "straggler_bubble": (bubble_by_sorting,),
    "weight_sync_seconds": (sync_in_bytes,),
}
