"""Mean and spread of the estimators: against integrals and literal loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.kl import kl_estimate
from grpo_lab.worlds.kl_worlds import enumerated_moments, gaussian_moments
from tests.support.agreement import assert_agree, assert_near, draw, few, seeds


@pytest.mark.parametrize("mu", [0.1, 0.7, 1.0, 2.0])
def test_gaussian_moments_are_the_integrals(mu):
    x = torch.linspace(-14, 14, 200_001, dtype=torch.float64)
    logp, ref_logp = -(x**2) / 2 - math.log(2 * math.pi) / 2, -((x - mu) ** 2) / 2 - math.log(2 * math.pi) / 2
    for name, (mean, std) in gaussian_moments(torch.tensor(mu, dtype=torch.float64)).items():
        k = kl_estimate(logp[None], ref_logp[None], name)[0]
        want = torch.trapezoid(logp.exp() * k, x)
        assert_near(mean, want, 1e-9)
        assert_near(std, torch.trapezoid(logp.exp() * (k - want) ** 2, x).sqrt(), 1e-9)


def test_gaussian_moments_are_those_of_the_well_known_table():
    for mu, kl, bias, spread in [(0.1, 0.005, 0.0025, (20, 1.42, 1.42)), (1.0, 0.5, 0.25, (2, 1.73, 1.70))]:
        moments = gaussian_moments(torch.tensor(mu, dtype=torch.float64))
        assert [m.item() / kl - 1 for m, _ in moments.values()] == pytest.approx([0, bias, 0], abs=1e-6)
        assert [s.item() / kl for _, s in moments.values()] == pytest.approx(spread, abs=0.006)


def test_gaussian_moments_can_be_differentiated():
    def loops(mu):
        spread = torch.stack([mu, (mu**4 / 2 + mu**6 / 4).sqrt(), (torch.exp(mu**2) - 1 - mu**2).sqrt()])
        return torch.stack([torch.stack([mu**2 / 2, mu**2 / 2 + mu**4 / 8, mu**2 / 2]), spread])

    ours = lambda mu: torch.stack([torch.stack(x) for x in zip(*gaussian_moments(mu).values(), strict=True)])  # noqa: E731
    assert_agree(ours, loops, torch.tensor([0.5, 1.5]).double(), tolerance=1e-9)


@few
@given(st.integers(1, 3), st.integers(2, 5), seeds, st.sampled_from(("k1", "k2", "k3")))
def test_enumerated_moments_are_the_loops(N, V, seed, name):
    def loops(logits, ref_logits):
        p, lp, lr = logits.softmax(-1), logits.log_softmax(-1), ref_logits.log_softmax(-1)
        d = lr - lp
        k = {"k1": -d, "k2": d * d / 2, "k3": d.exp() - 1 - d}[name]
        mean = sum(p[n, v] * k[n, v] for n in range(N) for v in range(V)) / N
        square = sum(p[n, v] * k[n, v] ** 2 for n in range(N) for v in range(V)) / N
        return torch.stack([mean, square - mean**2])

    ref_logits = draw(N, V, seed=seed)

    def ours(logits):
        mean, std = enumerated_moments(logits, ref_logits, name)
        return torch.stack([mean, std**2])

    assert_agree(ours, lambda x: loops(x, ref_logits), draw(N, V, seed=seed + 1), tolerance=1e-9)
