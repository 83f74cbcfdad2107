"""The worlds of notebook 04: moments against integrals, each way to charge the KL by hand, and where it leads."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.kl import kl_estimate, kl_exact
from grpo_lab.worlds.kl_worlds import (
    PENALTIES,
    best_policy,
    best_policy_forward,
    descend,
    enumerated_moments,
    expected_penalty,
    gaussian_moments,
    penalty,
    sampled_penalty,
    train_bandit,
)
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


SAME_PULL = ("k2", "k3+", "r*k3", "k1 in reward")  # token by token; r*k1 only on average


def loop_estimate(logp, ref_logp, kind):
    """Value and slope by logp of one sampled token, from the definitions."""
    d = ref_logp - logp
    values = {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - 1 - d}
    slopes = {"k1": 1.0, "k2": -d, "k3": 1 - math.exp(d)}
    if kind == "k1 in reward":
        return -d, -d
    if kind == "k3+":
        return values["k3"], -d
    if kind.startswith("r*"):  # the product rule, where the ratio is 1
        return values[kind[2:]], values[kind[2:]] + slopes[kind[2:]]
    return values[kind], slopes[kind]


@few
@given(seeds, st.sampled_from(PENALTIES), st.sampled_from([0.0, 0.3, 3.0]))
def test_penalty_by_hand(seed, kind, distance):
    ref_logp = -draw(2, 3, seed=seed).abs()
    leaf = (ref_logp + draw(2, 3, seed=seed + 1, scale=distance)).requires_grad_()
    value = penalty(leaf, ref_logp, kind)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    for b in range(2):
        for t in range(3):
            want = loop_estimate(leaf[b, t].item(), ref_logp[b, t].item(), kind)
            assert (value[b, t].item(), slope[b, t].item()) == pytest.approx(want, rel=1e-9, abs=1e-12)


@few
@given(seeds, st.integers(2, 6))
def test_expected_gradients(seed, V):
    logits, ref_logits = draw(2, V, seed=seed).requires_grad_(), draw(2, V, seed=seed + 1)
    grad = lambda x: torch.autograd.grad(x.sum(), logits)[0]  # noqa: E731
    reverse, forward = grad(kl_exact(logits[None], ref_logits[None])), grad(kl_exact(ref_logits[None], logits[None]))
    wants = {"k1": torch.zeros_like(reverse), "k3": forward} | dict.fromkeys((*SAME_PULL, "r*k1"), reverse)
    for kind in PENALTIES:
        expected = expected_penalty(logits, ref_logits, kind)
        if kind not in ("k2", "r*k2"):
            assert_near(expected.detach(), kl_exact(logits[None], ref_logits[None])[0].detach())
        if kind in wants:
            assert_near(grad(expected), wants[kind])
        else:
            assert (grad(expected) - reverse).abs().max() > 1e-6, kind


@few
@given(seeds, st.integers(3, 6))
def test_expected_gradients_where_an_older_policy_samples(seed, V):
    logits = draw(1, V, seed=seed).requires_grad_()
    ref, old = draw(1, V, seed=seed + 1), draw(1, V, seed=seed + 2)
    grad = lambda x: torch.autograd.grad(x.sum(), logits)[0]  # noqa: E731
    kl = lambda x, y: kl_exact(x[None], y[None])  # noqa: E731
    reverse = grad(kl(logits, ref))
    wants = {"k1": -grad(kl(old, logits)), "r*k1": reverse, "r*k3": reverse}
    wants["k1 in reward"] = grad(kl(logits, ref) - kl(logits, old))
    for kind in PENALTIES:
        got = grad(expected_penalty(logits, ref, kind, old))
        if kind in wants:
            assert_near(got, wants[kind])
        else:
            assert min((got - want).abs().max() for want in (reverse, grad(kl(ref, logits)))) > 1e-9, kind


@pytest.mark.parametrize("kind", PENALTIES)
def test_sampled_penalty_is_the_mean_over_its_samples(kind):
    logits, ref_logits = draw(2, 4, seed=0).requires_grad_(), draw(1, 4, seed=1)
    got = sampled_penalty(logits, ref_logits, kind, 5, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    answers = torch.multinomial(logp.exp().detach(), 5, replacement=True, generator=generator)
    pairs = [[loop_estimate(logp[s, y].item(), ref_logp[0, y].item(), kind) for y in answers[s]] for s in range(2)]
    assert got.tolist() == pytest.approx([sum(value for value, _ in row) / 5 for row in pairs])
    want = sum(slope / 5 * logp[s, y] for s in range(2) for y, (_, slope) in zip(answers[s], pairs[s], strict=True))
    assert_near(torch.autograd.grad(got.sum(), logits)[0], torch.autograd.grad(want, logits)[0])


def test_descent_without_noise():
    start, ref_logits = draw(2, 5, seed=0), draw(1, 5, seed=1)
    paths = {kind: descend(start, ref_logits, kind, steps=300, lr=0.5) for kind in PENALTIES}
    kl = {kind: kl_exact(path, ref_logits.expand_as(path)) for kind, path in paths.items()}
    assert not any(path.requires_grad for path in paths.values())
    assert paths["k1"].shape == (2, 301, 5) and torch.equal(paths["k2"][:, 0], start)
    assert_near(paths["k1"], start[:, None].expand(2, 301, 5))
    for kind in SAME_PULL:
        assert (kl[kind].diff(dim=1) < 1e-14).all() and (kl[kind][:, -1] < 1e-6).all()
        assert_near(paths[kind], paths["k2"], 1e-10)
    forward = kl_exact(ref_logits.expand_as(paths["k3"]), paths["k3"])
    assert (forward.diff(dim=1) < 1e-14).all() and (forward[:, -1] < 1e-6).all()


def test_descent_with_samples_is_reproducible_and_k1_only_wanders():
    start, ref_logits = draw(1, 5, seed=0).expand(4, 5), draw(1, 5, seed=1)
    run = lambda kind, seed=0: descend(start, ref_logits, kind, steps=100, lr=0.3, num_samples=16, seed=seed)  # noqa: E731
    assert torch.equal(run("k3"), run("k3")) and not torch.equal(run("k3"), run("k3", 1))
    assert not torch.equal(run("k2")[0], run("k2")[1]), "each run has its own samples"
    kl = {kind: kl_exact(path, ref_logits.expand_as(path))[:, [0, -1]] for kind in PENALTIES for path in [run(kind)]}
    assert (kl["k1"][:, 1] > 0.5 * kl["k1"][:, 0]).all()
    for kind in set(PENALTIES) - {"k1", "r*k2"}:
        assert (kl[kind][:, 1] < 0.1 * kl[kind][:, 0]).all()


def test_descent_in_a_family():
    x = torch.linspace(-4, 4, 33).double()
    family = lambda theta: -((x - theta[:, :1]) ** 2) / 2  # noqa: E731
    ref_logits = torch.where(x.abs() > 1, 0.3 * x, 0.0)[None]
    path = descend(torch.tensor([[-1.0]]).double(), ref_logits, "k3", family=family, steps=300, lr=0.1)
    means = [(logits.softmax(-1) * x).sum() for logits in (family(path[:, -1]), ref_logits)]
    assert_near(means[0], means[1], 1e-6)


@few
@given(seeds, st.integers(2, 6), st.sampled_from([0.1, 1.0, 5.0]))
def test_best_policies_cannot_be_improved(seed, V, beta):
    rewards, ref_logits = draw(V, seed=seed).requires_grad_(), draw(V, seed=seed + 1)
    best, forward = best_policy(rewards, ref_logits, beta), best_policy_forward(rewards, ref_logits, beta)
    assert best.requires_grad and forward.requires_grad
    assert_near(best_policy(torch.stack([rewards, -rewards]), ref_logits.expand(2, V), beta)[0], best)
    for logp, direction in ((best, 1), (forward, -1)):
        assert logp.exp().sum().item() == pytest.approx(1)
        leaf = logp.detach().requires_grad_()
        pair = (leaf[None, None], ref_logits[None, None])[::direction]
        objective = (leaf.softmax(-1) * rewards.detach()).sum() - beta * kl_exact(*pair).sum()
        assert_near(torch.autograd.grad(objective, leaf)[0], torch.zeros(V).double(), 1e-8)


def bandit(kind, beta, runs=3, **settings):
    rewards, ref_logits = torch.tensor([0.0, 1.0, 0.3, 0.0]).double(), draw(4, seed=5)
    sizes = {"steps": 300, "lr": 0.5, "num_generations": 16} | settings
    return rewards, ref_logits, train_bandit(rewards, ref_logits, kind, beta, runs=runs, **sizes)


def test_training_reaches_the_optimum_of_its_penalty():
    for kind, best in [("k2", best_policy), ("k1 in reward", best_policy), ("k3", best_policy_forward)]:
        rewards, ref_logits, history = bandit(kind, 0.5, steps=150, lr=0.4, num_generations=64)
        assert history.shape == (3, 151, 4)
        assert_near(history[:, 0], ref_logits.log_softmax(-1).expand(3, 4))
        assert (history[:, -50:].exp().mean((0, 1)) - best(rewards, ref_logits, 0.5).exp()).abs().max() < 0.02


def test_wrong_input_is_named():
    x = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="kind is 'K2'; expected one of 'k1', 'k2', "):
        train_bandit(x[0], x[0], "K2", 0.1, steps=1, lr=0.1, num_generations=2, runs=1)
    for best in (best_policy, best_policy_forward):
        with pytest.raises(ValueError, match="beta is 0"):
            best(x[0], x[0], 0.0)
