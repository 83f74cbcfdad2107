"""The best policies cannot be improved, and training leads to them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.kl import kl_exact
from grpo_lab.worlds.kl_worlds import best_policy, best_policy_forward, train_bandit
from tests.support.agreement import assert_agree, assert_near, draw, few, seeds


@few
@given(seeds, st.integers(2, 6), st.sampled_from([0.1, 1.0, 5.0]))
def test_best_policies_cannot_be_improved(seed, V, beta):
    rewards, ref_logits = draw(V, seed=seed).requires_grad_(), draw(V, seed=seed + 1)
    best, forward = best_policy(rewards, ref_logits, beta), best_policy_forward(rewards, ref_logits, beta)
    assert best.requires_grad and forward.requires_grad
    for logp, direction in ((best, 1), (forward, -1)):
        assert logp.exp().sum().item() == pytest.approx(1)
        leaf = logp.detach().requires_grad_()
        pair = (leaf[None, None], ref_logits[None, None])[::direction]
        objective = (leaf.softmax(-1) * rewards.detach()).sum() - beta * kl_exact(*pair).sum()
        assert_near(torch.autograd.grad(objective, leaf)[0], torch.zeros(V).double(), 1e-8)


def test_best_policy_is_differentiable():
    def want(rewards, ref_logits):
        tilted = ref_logits.softmax(-1) * torch.exp(rewards / 2)
        return torch.log(tilted / tilted.sum(-1, keepdim=True))

    assert_agree(lambda r, ref: best_policy(r, ref, 2.0), want, draw(2, 4, seed=0), draw(2, 4, seed=1))


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


def test_training_without_kl_and_with_k1_leaves_the_reference():
    for kind, beta in [("k3", 0.0), ("k1", 0.5)]:
        rewards, _, history = bandit(kind, beta, steps=100)
        assert ((history[:, -1].exp() * rewards).sum(-1) > 0.95).all()


def test_three_ways_to_charge_in_the_loss_are_one():
    paths = [bandit(kind, 0.5, steps=30)[2] for kind in ("k2", "k3+", "r*k3")]
    assert_near(paths[1], paths[0], 1e-9)
    assert_near(paths[2], paths[0], 1e-9)


def test_a_run_depends_on_the_seed_alone():
    assert torch.equal(bandit("k3", 0.5, steps=5)[2], bandit("k3", 0.5, steps=5)[2])
    assert not torch.equal(bandit("k3", 0.5, steps=5, seed=1)[2], bandit("k3", 0.5, steps=5)[2])


def test_a_step_is_as_long_however_many_runs_go_side_by_side():
    settings = {"steps": 1, "num_generations": 4000}
    one, many = (bandit("k2", 0.5, runs=runs, **settings)[2].diff(dim=1)[:, 0] for runs in (1, 8))
    assert_near(many.mean(0), one[0], 0.1)


def test_wrong_input_is_named():
    x = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="kind is 'K2'"):
        train_bandit(x[0], x[0], "K2", 0.1, steps=1, lr=0.1, num_generations=2, runs=1)
    for best in (best_policy, best_policy_forward):
        with pytest.raises(ValueError, match="beta is 0"):
            best(x[0], x[0], 0.0)
    with pytest.raises(ValueError, match="beta is -1"):
        train_bandit(x[0], x[0], "k2", -1.0, steps=1, lr=0.1, num_generations=2, runs=1)
