"""Estimates from counts of right completions: pass@k without bias, and the interval of a share."""

import math

from grpo_lab.base.checks import InputError


def pass_at_k(n: int, c: int, k: int) -> float:
    r"""Estimate without bias the chance that at least one of k completions is right, from c right ones among n >= k.

    \mathrm{pass@}k = 1 - \binom{n - c}{k} \Big/ \binom{n}{k} \tag{7.2}

    `math.comb` is exact, and Python divides whole numbers of any size.

    Source: Chen et al. (2021), "Evaluating large language models trained on code", equation 1.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise InputError("n, c, k", (n, c, k), "expected 0 <= c <= n and 1 <= k <= n", problem=f"are {n}, {c}, {k}")
    estimate = 1 - math.comb(n - c, k) / math.comb(n, k)  # scalar (7.2)
    return estimate


def wilson_interval(share: float, n: int, z: float = 1.959964) -> list[float]:
    r"""Compute the 95% interval of a share seen in n independent trials; it stays within [0, 1].

    c = \frac{p + z^2 / 2n}{1 + z^2 / n} \tag{7.5}
    h = \frac{z}{1 + z^2 / n} \sqrt{\frac{p (1 - p)}{n} + \frac{z^2}{4 n^2}} \tag{7.6}

    z: Quantile of the normal distribution; the default is that of a 95% interval.

    Returns:
        [c - h, c + h].

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference".
    """
    if n < 1 or not 0 <= share <= 1:
        raise InputError("share", share, "expected 0 <= share <= 1 and n >= 1", problem=f"is {share} and n is {n}")
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)  # scalar (7.5)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))  # scalar (7.6)
    # The exact interval contains the share; at 0 and 1, rounding could exclude it.
    return [min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share)]
