"""Ratio, surrogate, aggregation and loss: against literal loops in value and gradient, and by their properties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.objective import (
    LOSS_TYPES,
    aggregate,
    clipped_surrogate,
    gspo_token_ratio,
    importance_ratio,
    policy_loss,
)
from tests.support import oracles
from tests.support.agreement import (
    assert_agree,
    assert_near,
    batch,
    draw,
    few,
    many,
    ragged_mask,
    seeds,
    value_and_gradients,
)

shapes = st.tuples(st.integers(1, 4), st.integers(1, 4))
loss_types = st.sampled_from(oracles.LOSS_TYPES)
levels = st.sampled_from(["token", "sequence"])
distances = st.sampled_from([0.0, 0.1, 1.0, 6.0])


def test_the_loss_types_are_those_of_the_oracle():
    assert set(LOSS_TYPES) == set(oracles.LOSS_TYPES)


# --- ratio ----------------------------------------------------------------------------------------------------


@many
@given(shapes, seeds, levels, distances)
def test_ratio_is_the_loops(shape, seed, level, distance):
    logp, old, _, _, mask = batch(*shape, seed, distance)
    kept = mask if level == "token" else torch.ones_like(mask[:, :1])
    assert_agree(
        lambda x: importance_ratio(x, old, mask, level) * kept,
        lambda x: oracles.importance_ratio(x, old, mask, level) * kept,
        logp,
    )
    assert_agree(
        lambda x: gspo_token_ratio(x, old, mask) * mask, lambda x: oracles.gspo_token_ratio(x, old, mask) * mask, logp
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_first_step_has_ratio_exactly_one_and_a_gradient(level, dtype):
    logp = (-30 * draw(3, 5, seed=0).abs()).to(dtype).requires_grad_()
    ratio = importance_ratio(logp, logp, ragged_mask(3, 5, 0), level)
    assert (ratio == 1).all()
    ratio.sum().backward()
    assert logp.grad.abs().sum() > 0, "the old policy's gradient is stopped, the current one's is not"


def test_sequence_ratio_by_hand():
    logp = torch.tensor([[0.3, 0.1, 9.0], [0.2, 5.0, 5.0]]).double()
    mask = torch.tensor([[True, True, False], [False, False, False]])
    ratio = importance_ratio(logp, torch.zeros(2, 3).double(), mask, "sequence")
    assert ratio.shape == (2, 1)
    assert ratio[:, 0].tolist() == pytest.approx([math.exp(0.2), 1.0], rel=1e-7)


# --- surrogate ------------------------------------------------------------------------------------------------


@many
@given(shapes, seeds, distances, st.sampled_from([(0.2, None), (0.2, 0.28), (0.0, 0.0), (1.0, 3.0)]), st.booleans())
def test_surrogate_is_the_loops(shape, seed, distance, clip, bounded):
    ratio = draw(*shape, seed=seed, scale=distance).exp()
    delta = 1 + (clip[0] if clip[1] is None else clip[1]) + 0.7 if bounded else None
    assert_agree(
        lambda r, a: clipped_surrogate(r, a, *clip, delta),
        lambda r, a: oracles.clipped_surrogate(r, a, *clip, delta),
        ratio,
        draw(*shape, seed=seed + 1),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.5, 1.0, 1.2, 0.0),  # already above the upper bound: nothing more to gain
        (0.5, 1.0, 0.5, 1.0),  # moved the wrong way: the gradient stays
        (0.5, -1.0, -0.8, 0.0),  # already below the lower bound
        (1.5, -1.0, -1.5, -1.0),  # moved the wrong way
        (1.1, 1.0, 1.1, 1.0),  # inside
        (0.9, -2.0, -1.8, -2.0),
        (9.0, -1.0, -9.0, -1.0),  # unbounded without delta
    ],
)
def test_the_regions_of_the_clip(ratio, advantage, value, slope):
    leaf = torch.tensor([[ratio]], dtype=torch.float64, requires_grad=True)
    surrogate = clipped_surrogate(leaf, torch.tensor([advantage], dtype=torch.float64))
    surrogate.sum().backward()
    assert surrogate.item() == pytest.approx(value) and leaf.grad.item() == pytest.approx(slope)


def test_delta_bounds_only_the_unclipped_branch():
    leaf = torch.tensor([[9.0, 2.0, 9.0]], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[-1.0, -1.0, 1.0]], dtype=torch.float64)
    surrogate = clipped_surrogate(leaf, advantages, delta=4.0)
    surrogate.sum().backward()
    assert surrogate.tolist() == [[-4.0, -2.0, 1.2]] and leaf.grad.tolist() == [[0.0, -1.0, 0.0]]


# --- aggregation ----------------------------------------------------------------------------------------------


@many
@given(shapes, seeds, loss_types, st.sampled_from([None, 1, 7.0]))
def test_aggregate_is_the_loops(shape, seed, loss_type, num_items):
    mask = ragged_mask(*shape, seed)
    assert_agree(
        lambda v: aggregate(v, mask, loss_type, 6, num_items),
        lambda v: oracles.aggregate(v, mask, loss_type, 6, num_items),
        draw(*shape, seed=seed),
    )


def test_aggregate_by_hand():
    values = torch.tensor([[1.0, 3.0, 9.0], [6.0, 9.0, 9.0], [9.0, 9.0, 9.0]]).double()
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    want = {
        "grpo": (2 + 6 + 0) / 3, "sapo": 8 / 3, "luspo": 10 / 3, "dr_grpo": 10 / 15, "bnpo": 10 / 3,
        "dapo": 10 / 20, "cispo": 10 / 20, "vespo": 10 / 20,
    }  # fmt: skip
    for name in LOSS_TYPES:
        assert aggregate(values, mask, name, 5, 20).item() == pytest.approx(want[name], rel=1e-12), name
    for name in ("dapo", "cispo", "vespo"):
        assert aggregate(values, mask, name).item() == pytest.approx(10 / 3)
        for items in (20.0, torch.tensor(20), torch.tensor(20.0)):
            assert aggregate(values, mask, name, num_items=items).item() == pytest.approx(0.5)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_an_empty_mask_is_a_finite_zero(loss_type):
    logp = draw(2, 3, seed=0).requires_grad_()
    mask = torch.zeros(2, 3, dtype=torch.bool)
    for items in (None, 0):
        assert aggregate(logp, mask, loss_type, 4, items).item() == 0
    loss, metrics = policy_loss(
        logp, draw(2, seed=1), mask, draw(2, 3, seed=2), draw(2, 3, seed=3),
        loss_type=loss_type, beta=0.1, max_completion_length=4,
    )  # fmt: skip
    loss.backward()
    assert loss.item() == 0 and (logp.grad == 0).all()
    assert all(math.isfinite(x) for x in metrics.values())


# --- loss -----------------------------------------------------------------------------------------------------

settings_of_the_loss = st.fixed_dictionaries(
    {
        "importance_sampling_level": levels,
        "epsilon": st.sampled_from([0.1, 0.2]),
        "epsilon_high": st.sampled_from([None, 0.28, 5.0]),
        "delta": st.sampled_from([None, 7.0]),
        "beta": st.sampled_from([0.0, 0.04, 1.0]),
        "kl_estimator": st.sampled_from(["k1", "k2", "k3", "k3+"]),
        "kl_bias_correction": st.booleans(),
        "num_items": st.sampled_from([None, 11]),
    }
)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@many
@given(shape=shapes, seed=seeds, keywords=settings_of_the_loss, distance=distances, per_token=st.booleans())
def test_loss_is_the_loops(loss_type, shape, seed, keywords, distance, per_token):
    logp, old, ref, advantages, mask = batch(*shape, seed, distance)
    if per_token:
        advantages = draw(*shape, seed=seed + 5)
    keywords = {"loss_type": loss_type, "max_completion_length": 9, **keywords}
    assert_agree(
        lambda x: policy_loss(x, advantages, mask, old, ref, **keywords)[0],
        lambda x: oracles.policy_loss(x, advantages, mask, old, ref, **keywords)[0],
        logp,
    )
    metrics = policy_loss(logp, advantages, mask, old, ref, **keywords)[1]
    want = oracles.policy_loss(logp, advantages, mask, old, ref, **keywords)[1]
    for name in metrics.keys() & want.keys():
        assert metrics[name] == pytest.approx(want[name], rel=1e-6), name


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_metrics_have_trl_names(loss_type):
    logp, old, ref, advantages, mask = batch(3, 4, 0)
    keywords = {"loss_type": loss_type, "max_completion_length": 4}
    names = set(policy_loss(logp, advantages, mask, old, ref, **keywords, beta=0.1)[1])
    assert "kl" in names and "kl" not in policy_loss(logp, advantages, mask, old, ref, **keywords)[1]
    if loss_type not in ("cispo", "sapo", "vespo"):
        assert {"clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"} <= names


def test_clip_metrics_by_hand():
    old, mask = torch.zeros(2, 4).double(), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    logp = torch.tensor([[1.0, -1.0, 0.1, 1.0], [-1.0, 1.0, -1.0, -1.0]]).double()
    advantages = torch.tensor([1.0, -1.0]).double()
    metrics = policy_loss(logp, advantages, mask, old)[1]
    assert metrics["clip_ratio/high_mean"] == pytest.approx(2 / 6)
    assert metrics["clip_ratio/low_mean"] == pytest.approx(1 / 6)
    assert metrics["clip_ratio/region_mean"] == pytest.approx(3 / 6)
    # One ratio a row, (1 - 1 + 0.1 + 1) / 4 and 0: a share of rows now, not of tokens.
    metrics = policy_loss(logp, advantages, mask, old, importance_sampling_level="sequence")[1]
    assert metrics["clip_ratio/high_mean"] == pytest.approx(1 / 2) and metrics["clip_ratio/low_mean"] == 0
    metrics = policy_loss(logp, advantages, mask, old, loss_type="cispo", epsilon_high=2.0)[1]
    assert metrics["cispo_clip_ratio"] == pytest.approx(2 / 6)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_as_many_rows_as_tokens(loss_type, level):
    """(B,) against (B, T) with B == T: an advantage belongs to a row, never to a column."""
    logp, old, ref, advantages, mask = batch(4, 4, 3)
    keywords = {
        "loss_type": loss_type, "importance_sampling_level": level, "beta": 0.1, "epsilon_high": 0.3,
        "max_completion_length": 4, "num_items": 9,
    }  # fmt: skip
    loss = policy_loss(logp, advantages, mask, old, ref, **keywords)[0]
    assert_near(loss, oracles.policy_loss(logp, advantages, mask, old, ref, **keywords)[0])
    for same in (advantages[:, None], advantages[:, None].expand(4, 4)):
        assert_near(policy_loss(logp, same, mask, old, ref, **keywords)[0], loss)
    flipped = advantages.expand(4, 4)
    assert abs(policy_loss(logp, flipped, mask, old, ref, **keywords)[0] - loss) > 1e-3


@few
@given(shapes, seeds, loss_types)
def test_without_old_logp_the_policy_is_its_own_past(shape, seed, loss_type):
    logp, _, _, advantages, mask = batch(*shape, seed)
    keywords = {"loss_type": loss_type, "max_completion_length": 5, "epsilon_high": 5.0}
    assert_agree(
        lambda x: policy_loss(x, advantages, mask, **keywords)[0],
        lambda x: policy_loss(x, advantages, mask, x.detach(), **keywords)[0],
        logp,
    )
    metrics = policy_loss(logp, advantages, mask, **keywords)[1]
    assert metrics["ratio"] == (1 if mask.any() else 0)
    assert all(value == 0 for name, value in metrics.items() if "clip" in name)


@few
@given(shapes, seeds, loss_types, levels)
def test_at_the_first_step_every_loss_is_the_policy_gradient(shape, seed, loss_type, level):
    """At ratio 1 each gradient is that of -A log pi, aggregated."""
    logp, _, _, advantages, mask = batch(*shape, seed)
    keywords = {"loss_type": loss_type, "max_completion_length": 5}
    _, gradients = value_and_gradients(
        lambda x: policy_loss(
            x, advantages, mask, importance_sampling_level=level, epsilon_high=5.0, **keywords
        )[0],
        [logp],
    )  # fmt: skip
    weights = torch.where(mask, advantages[:, None], 0)
    _, want = value_and_gradients(lambda x: aggregate(-weights * x, mask, **keywords), [logp])
    if level == "sequence" and loss_type not in ("cispo", "vespo"):
        # Each token gets 1/n of its row's term, which the row's sum takes n times.
        assert_near(gradients[0].sum(1), want[0].sum(1))
    else:
        assert_near(gradients[0], want[0])


@few
@given(shapes, seeds, distances)
def test_gspo_and_gspo_token_have_one_loss_and_gradient(shape, seed, distance):
    logp, old, _, advantages, mask = batch(*shape, seed, distance)

    def gspo(x):
        return policy_loss(x, advantages, mask, old, importance_sampling_level="sequence")[0]

    for ratio in (gspo_token_ratio, oracles.gspo_token_ratio):
        assert_agree(
            lambda x, ratio=ratio: aggregate(-clipped_surrogate(ratio(x, old, mask), advantages), mask, "grpo"),
            gspo,
            logp,
        )
