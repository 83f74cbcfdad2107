r"""Rounding of updated weights to bf16: stochastic rounding, and what rounding leaves of small updates.

A bf16 number keeps 8 significant bits. At a learning rate of 1e-6 most of Adam's updates are smaller than half the
distance to the next bf16 number, so rounding to the nearest undoes them. Stochastic rounding rounds up or down so that
the mean is right. The 8-bit AdamW of the precision "bf16" rounds in this way, in fewer kernels (`adamw_8bit`).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.base.checks import InputError, check_choice


def stochastic_round(x: Float[Tensor, "*S"], noise: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    r"""Round float32 to bf16 stochastically: up or down, so that the mean over the noise is the number itself.

    If x is not 0, x_0 is the nearest bf16 number between 0 and x, and x_1 is the next bf16 number away from zero.

    x_0 = \operatorname{sgn}(x) \max \{ b \in \mathrm{bf16} : b \le |x| \}  \tag{8.2}
    x_1 = \operatorname{sgn}(x) \min \{ b \in \mathrm{bf16} : b > |x_0| \}  \tag{8.3}
    p = \frac{x - x_0}{x_1 - x_0}                                           \tag{8.4}
    \tilde x = x_1 \text{ if } u < p \text{ else } x_0                      \tag{8.5}

    A bf16 number is the upper half of a float32 number. So x_0 is x without its 16 lower bits, and x_1 adds one to the
    upper half. x.view(torch.int32) returns the bits as integers to calculate with, and .view(torch.float32) converts
    them back. p is a multiple of 2^{-16} and is computed exactly: E[x~] = x without any error, up to the largest bf16
    number.

    Args:
        x: The numbers to round, in float32.
        noise: u, uniform in [0, 1): one number for each number of x, such as `torch.rand_like(x)`.

    Returns:
        The rounded numbers in bf16. Infinities and NaN stay; a finite number beyond the largest bf16 number becomes the
        largest one.

    Raises:
        ValueError: if x is not float32.

    Source: Gupta et al. (2015), "Deep learning with limited numerical precision", section 3.1.
    """
    if x.dtype != torch.float32:
        raise InputError(f"x is {x.dtype}; expected torch.float32")
    x_0 = (x.view(torch.int32) & -(2**16)).view(torch.float32)  # S (8.2)
    x_1 = (x_0.view(torch.int32) + 2**16).view(torch.float32)  # S (8.3)
    p = (x - x_0) / (x_1 - x_0)  # S (8.4)
    rounded = torch.where(noise < p, x_1, x_0)  # S (8.5)
    return torch.where(x.isfinite(), rounded, x).bfloat16()


def realised_share(
    weights: Float[Tensor, "*S"], learning_rate: float, steps: int, precision: str, seed: int = 0
) -> Float[Tensor, " steps"]:
    r"""Compute the share of the intended movement that weights have made after each of several steps in one direction.

    While its gradient stays the same, Adam moves a weight by about the learning rate at each step. The moved weight is
    rounded to the numbers of the precision: `round` does nothing for "fp32", rounds to the nearest bf16 number for
    "bf16-naive", and is Eq. (8.5) with new noise at each step for "bf16".

    w_{t} = \operatorname{round}(w_{t-1} - \eta)                                  \tag{8.6}
    \text{share}_t = \frac{1}{n} \sum_{i=1}^{n} \frac{w_{0,i} - w_{t,i}}{t \, \eta} \tag{8.7}

    Args:
        weights: The n weights before the first step; they are rounded to bf16 first, so that all start equal.
        learning_rate: \eta, the distance that a weight should move at each step.
        steps: Number of steps.
        precision: "fp32", "bf16-naive" or "bf16".
        seed: Seed of the noise.
    """
    # The offset keeps the noise independent of weights that were drawn with the same small seed.
    generator = torch.Generator().manual_seed(987_654_321 + seed)
    rounding = {
        "fp32": lambda w: w,
        "bf16-naive": lambda w: w.bfloat16().float(),
        "bf16": lambda w: stochastic_round(w, torch.rand(w.shape, generator=generator)).float(),
    }
    check_choice("precision", precision, rounding)
    start = weights.bfloat16().double()
    w, shares = start.float(), []
    for t in range(1, steps + 1):
        w = rounding[precision](w - learning_rate)  # S (8.6)
        share = ((start - w) / (t * learning_rate)).mean()  # scalar (8.7)
        shares.append(share)
    return torch.stack(shares)
