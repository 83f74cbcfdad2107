"""Right answers to the exercises of notebook 08."""

import torch


def round_by_lower_bits(x, noise):
    """Read the lower 16 bits as a number of 65536ths: the position between the two neighbours in bf16."""
    bits = x.view(torch.int32)
    lower = bits % 65536
    upper = bits - lower + 65536 * (noise * 65536 < lower)
    rounded = upper.int().view(torch.float32)
    rounded = torch.where(rounded.isinf(), (bits - lower).int().view(torch.float32), rounded)
    return torch.where(x.isfinite(), rounded, x).bfloat16()


def move_by_one_vector(policy):
    """Compare all weights as one vector, in float64."""

    def read():
        rest = [p.detach().double().flatten() for name, p in policy.named_parameters() if "embed" not in name]
        return torch.cat(rest).clone()

    start = read()

    def callback(step, metrics):
        if step == 1:
            move = ((read() - start) / metrics["learning_rate"]).abs().mean().item()
            print("moved", move)
            return move

    return callback


RIGHT = {
    "stochastic_round": (round_by_lower_bits,),
    "first_step_movement": (move_by_one_vector,),
}
