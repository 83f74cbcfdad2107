"""Compare a function with its oracle: the value, and the gradient with respect to every differentiable input."""

import math

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st

# No deadlines, because they measure the machine. `derandomize` makes the examples the same on every machine.
# The profile of `tests.mutants` omits shrinking.
phases = [phase for phase in (Phase.generate, Phase.shrink) if phase in settings.default.phases]
default_max_examples = settings.default.max_examples
few_examples = settings(max_examples=default_max_examples // 4, deadline=None, derandomize=True, phases=phases)
many_examples = settings(few_examples, max_examples=6 * default_max_examples // 10)
seeds = st.integers(0, 2**20)
# Groups of one of these values leave a residue in `r - r.mean()`, in at least one precision and group size.
HARD_TO_AVERAGE = [0.1, 1 / 3, 0.7, -0.3, 1e6 + 0.1, 1e-8, 1e8 / 3, math.pi, 0.0]


def draw(*shape, seed, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_integers(shape, below, seed):
    """Draw integers from 0 to below - 1."""
    return torch.randint(below, tuple(shape), generator=torch.Generator().manual_seed(seed))


def ragged_mask(B, T, seed):
    """Draw a mask of shape (B, T) whose rows are prefixes of random length, from 0 to T."""
    lengths = torch.randint(0, T + 1, (B, 1), generator=torch.Generator().manual_seed(seed))
    return torch.arange(T) < lengths


def value_and_gradients(function, inputs, cotangent_seed=0):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*leaves)
    if not value.requires_grad:  # for example a ratio whose mask is empty
        return value, [torch.zeros_like(x) for x in leaves]
    cotangent = draw(*value.shape, seed=cotangent_seed).to(value.dtype)
    gradients = torch.autograd.grad((value * cotangent).sum(), leaves, allow_unused=True)
    return value.detach(), [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True)]


def assert_agree(ours, oracle, *inputs, tolerance=1e-12):
    (value, gradients), (expected, expected_gradients) = (value_and_gradients(f, inputs) for f in (ours, oracle))
    assert value.shape == expected.shape
    assert_near(value, expected, tolerance)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert_near(gradient, expected_gradient, tolerance)


def assert_near(value, expected, tolerance=1e-12):
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


def draw_batch(B, T, seed, distance=0.5):
    """Draw logp, old_logp, ref_logp (B, T), advantages (B,), some of which are 0, and a ragged mask (B, T)."""
    old = -draw(B, T, seed=seed).abs() - 0.1
    logp = old + draw(B, T, seed=seed + 1, scale=distance)
    advantages = draw(B, seed=seed + 3)
    advantages[draw(B, seed=seed + 4) > 1] = 0
    return logp, old, old + draw(B, T, seed=seed + 2, scale=0.5), advantages, ragged_mask(B, T, seed)
