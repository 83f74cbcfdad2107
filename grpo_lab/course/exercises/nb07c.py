"""The exercises of notebook 07c."""

import math

from grpo_lab.base.checks import InputError
from grpo_lab.course.exercise import (
    Draws,
    Exercise,
    drawn_case,
    handwritten_case,
    stability_case,
    wrong_function,
    wrong_lines,
)
from grpo_lab.evaluate import pass_at_k


def _counts(draws: Draws, largest: int) -> tuple[int, int, int]:
    """Draw n up to `largest`, c and k, with 0 < c < n and 1 < k < n - c: none is at an end of its range."""
    n = 8 + int(draws.integers(largest - 7, 1))
    c = 1 + int(draws.integers(n // 2, 1))
    return n, c, 2 + int(draws.integers(max(n - c - 3, 1), 1))


PASS_AT_K = Exercise(
    function=pass_at_k,
    cases=(
        handwritten_case("one of four is right, one is drawn", 4, 1, 1),
        handwritten_case("one of four is right, two are drawn", 4, 1, 2),
        handwritten_case("two of four are right, two are drawn", 4, 2, 2),
        handwritten_case("none is right", 4, 0, 3),
        handwritten_case("all are right", 4, 4, 2),
        handwritten_case("more are drawn than are wrong", 4, 2, 3),
        handwritten_case("all are drawn", 5, 1, 5),
        drawn_case("up to 20 samples", lambda draws: _counts(draws, 20)),
        drawn_case("up to 100 samples", lambda draws: _counts(draws, 100)),
        stability_case("4,000 samples, of which 3 are right", 4000, 3, 1000),
        stability_case("4,000 samples, of which half are right", 4000, 2000, 5),
    ),
    mistakes=(
        wrong_lines("with-replacement", {"7.2": "estimate = 1 - (1 - c / n) ** k"}),
        wrong_lines("all-right", {"7.2": "estimate = math.comb(c, k) / math.comb(n, k)"}),
        wrong_lines("right-counted", {"7.2": "estimate = 1 - math.comb(c, k) / math.comb(n, k)"}),
        wrong_lines("all-wrong", {"7.2": "estimate = math.comb(n - c, k) / math.comb(n, k)"}),
        wrong_lines("any-of-all", {"7.2": "estimate = float(c > 0)"}),
        wrong_lines("times-k", {"7.2": "estimate = min(k * c / n, 1.0)"}),
        wrong_lines("exactly-one", {"7.2": "estimate = c * math.comb(n - c, k - 1) / math.comb(n, k)"}),
    ),
)


def samples_until_right(n: int, c: int, limit: int) -> float:
    """Estimate the mean number of samples that are drawn until one is right or the limit is reached.

    With a verifier, sampling can stop at the first right answer. As in `pass_at_k`, the estimate uses n recorded
    samples, of which c are right: samples are drawn from them one by one without replacement, `limit` of them at most.

    Example:
        With n = 2, c = 1 and limit 2, the first sample is right in half of the cases; otherwise a second one is drawn.
        The mean is 1.5.

    Args:
        n: Number of recorded samples of a problem.
        c: Number of right samples among them. With c = 0, `limit` samples are always drawn.
        limit: Largest number of samples that are drawn, from 1 to n.

    Returns:
        The mean over all orders in which the n samples can be drawn.
    """
    if not (0 <= c <= n and 1 <= limit <= n):
        raise InputError(
            "n, c, limit", (n, c, limit), "expected 0 <= c <= n and 1 <= limit <= n", problem=f"are {n}, {c}, {limit}"
        )
    still_wrong = [math.comb(n - c, j) / math.comb(n, j) for j in range(limit)]  # after j samples
    return float(sum(still_wrong))


SAMPLES_UNTIL_RIGHT = Exercise(
    function=samples_until_right,
    cases=(
        handwritten_case("one of two is right", 2, 1, 2),
        handwritten_case("one of four is right, the limit is two", 4, 1, 2),
        handwritten_case("none is right", 8, 0, 5),
        handwritten_case("all are right", 8, 8, 5),
        handwritten_case("the limit is 1", 8, 3, 1),
        handwritten_case("as many as there are", 8, 2, 8),
        drawn_case("up to 20 samples", lambda draws: _counts(draws, 20)),
        drawn_case("up to 100 samples", lambda draws: _counts(draws, 100)),
        stability_case("400 samples, of which 3 are right", 400, 3, 60),
    ),
    mistakes=(
        wrong_lines("geometric", {"comb()": "still_wrong = [(1 - c / n) ** j for j in range(limit)]"}),
        wrong_lines(
            "without-limit", {"comb()": "still_wrong = [math.comb(n - c, j) / math.comb(n, j) for j in range(n + 1)]"}
        ),
        wrong_lines(
            "first-sample-free",
            {"comb()": "still_wrong = [math.comb(n - c, j) / math.comb(n, j) for j in range(1, limit)]"},
        ),
        wrong_lines(
            "one-too-many",
            {"comb()": "still_wrong = [math.comb(n - c, j) / math.comb(n, j) for j in range(limit + 1)]"},
        ),
        wrong_lines(
            "right-ones-added",
            {"comb()": "still_wrong = [1 - math.comb(n - c, j) / math.comb(n, j) for j in range(limit)]"},
        ),
        wrong_lines("always-the-limit", {"comb()": "still_wrong = [1] * limit"}),
        wrong_function("inverse-of-the-rate", lambda n, c, limit: min(limit, n / c) if c else float(limit)),
        wrong_lines(
            "begins-at-one",
            {"comb()": "still_wrong = [math.comb(n - c, j) / math.comb(n, j) for j in range(1, limit + 1)]"},
        ),
    ),
)
