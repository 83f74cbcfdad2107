"""Right answers to the exercises of notebook 07c."""

from math import expm1, lgamma


def pass_by_product(n, c, k):
    """Compute pass@k as the paper's numpy code does: a product with one factor for each sample."""
    none_right = 1.0
    for i in range(n - c + 1, n + 1):
        none_right *= max(1 - k / i, 0.0)
    return 1 - none_right


def pass_by_logarithms(n, c, k):
    if k > n - c:
        return 1.0

    def log_comb(a, b):
        return lgamma(a + 1) - lgamma(b + 1) - lgamma(a - b + 1)

    return -(expm1(log_comb(n - c, k) - log_comb(n, k)))


def samples_step_by_step(n, c, limit):
    """Add up over the draws: the probability of reaching a draw, times the probability of being right there."""
    mean, reached = 0.0, 1.0
    for drawn in range(limit):
        right = c / (n - drawn) if drawn < n else 0
        last = drawn + 1 == limit
        mean += reached * (1 if last else right) * (drawn + 1)
        reached *= 1 - right
    return mean


RIGHT = {
    "pass_at_k": (pass_by_product, pass_by_logarithms),
    "samples_until_right": (samples_step_by_step,),
}
