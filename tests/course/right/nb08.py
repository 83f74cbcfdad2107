"""Right answers to the exercises of notebook 08, each written differently; the check has to accept them all."""

import math

import torch


def round_by_lower_bits(x, noise):
    """The lower 16 bits, read as a whole number of 65536ths, are the place between the neighbours."""
    bits = x.view(torch.int32)
    lower = bits % 65536
    upper = bits - lower + 65536 * (noise * 65536 < lower)
    rounded = upper.int().view(torch.float32)
    rounded = torch.where(rounded.isinf(), (bits - lower).int().view(torch.float32), rounded)
    return torch.where(x.isfinite(), rounded, x).bfloat16()


def rate_as_minimum(step, peak, warmup_steps, max_steps, scheduler_type):
    rise = (step + 1) / warmup_steps if warmup_steps else 1.0
    over = max(step - warmup_steps, 0) / max(max_steps - warmup_steps, 1)
    falls = {"linear": 1 - over, "cosine": math.cos(math.pi * over / 2) ** 2}
    rate = min(rise, 1.0) if step < warmup_steps else falls.get(scheduler_type, 1.0)
    return peak if scheduler_type == "constant" else peak * rate


def cache_by_heads(shape, tokens, e):
    head_width = shape.queries // shape.heads
    key_heads = shape.keys // head_width
    return tokens * shape.layers * key_heads * (head_width * e + head_width * e)


RIGHT = {
    "stochastic_round": (round_by_lower_bits,),
    "cache_bytes": (cache_by_heads,),
    "learning_rate": (rate_as_minimum,),
}
