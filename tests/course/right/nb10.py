"""Right answers to the exercises of notebook 10, each written differently; the check has to accept them all."""

import torch


def weights_as_quotient(logp, sampler_logp, mask, level="token"):
    """Products and quotients of exponentials, in logarithms only where a sequence needs it."""
    moved = (logp - sampler_logp).detach().masked_fill(~mask, 0.0)
    return torch.exp(moved if level == "token" else (moved @ torch.ones_like(moved[0]))[:, None])


def bubble_by_sorting(lengths, slots):
    ends = [0] * slots
    for n in lengths.tolist():
        ends = [*sorted(ends)[1:], min(ends) + n]
    return sum(max(ends) - end for end in ends) / (slots * max(ends))


def ages_by_a_clock(lengths, slots, batch):
    """Event by event: whoever ends first is taken out, and the next begins in its place."""
    waiting, running, ended, ages, now = list(enumerate(lengths.tolist())), [], 0, {}, 0
    while waiting or running:
        while waiting and len(running) < slots:
            i, n = waiting.pop(0)
            running.append((now + n, i, ended // batch))
        now = min(running)[0]
        for end, i, version in sorted(running):
            if end == now:
                running.remove((end, i, version))
                ages[i], ended = ended // batch - version, ended + 1
    return torch.tensor([ages[i] for i in range(len(ages))])


RIGHT = {
    "straggler_bubble": (bubble_by_sorting,),
    "answer_ages": (ages_by_a_clock,),
    "importance_weights": (weights_as_quotient,),
}
