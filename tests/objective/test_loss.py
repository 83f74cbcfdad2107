"""Averages and loss against literal loops, in value and gradient, and by their properties; metrics and errors."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.objective import LOSS_TYPES, aggregate, clipped_surrogate, gspo_token_ratio, policy_loss
from tests.support import oracles
from tests.support.agreement import assert_agree, draw, draw_batch, few_examples, many_examples, ragged_mask, seeds

shapes = st.tuples(st.integers(1, 4), st.integers(1, 4))
loss_types = st.sampled_from(oracles.LOSS_TYPES)
levels = st.sampled_from(["token", "sequence"])
distances = st.sampled_from([0.0, 0.1, 1.0, 6.0])
forms = st.sampled_from(["row", "column", "token"])


@many_examples
@given(shapes, seeds, loss_types, st.sampled_from([None, 1, 7.0]))
def test_aggregate_equals_that_of_literal_loops(shape, seed, loss_type, num_items):
    mask = ragged_mask(*shape, seed)
    assert_agree(
        lambda v: aggregate(v, mask, loss_type, 6, num_items),
        lambda v: oracles.aggregate(v, mask, loss_type, 6, num_items),
        draw(*shape, seed=seed),
    )


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
        "sapo_temperature_pos": st.sampled_from([1.0, 0.4]),
        "vespo_k_neg": st.sampled_from([3.0, 1.2]),
        "vespo_lambda_pos": st.sampled_from([3.0, 0.7]),
    }
)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@many_examples
@given(
    shape=shapes,
    seed=seeds,
    keywords=settings_of_the_loss,
    distance=distances,
    form=forms,
)
def test_policy_loss_equals_that_of_literal_loops(loss_type, shape, seed, keywords, distance, form):
    """The shapes include as many rows as tokens: an advantage belongs to a row and never to a column."""
    logp, old, ref, advantages, mask = draw_batch(*shape, seed, distance)
    if form == "token":
        advantages = draw(*shape, seed=seed + 5)
    keywords = {"loss_type": loss_type, "max_completion_length": 9, **keywords}
    ours = advantages[:, None] if form == "column" else advantages
    assert_agree(
        lambda x: policy_loss(x, ours, mask, old, ref, **keywords)[0],
        lambda x: oracles.policy_loss(x, advantages, mask, old, ref, **keywords)[0],
        logp,
    )
    metrics = policy_loss(logp, advantages, mask, old, ref, **keywords)[1]
    expected = oracles.policy_loss(logp, advantages, mask, old, ref, **keywords)[1]
    for name in metrics.keys() & expected.keys():
        assert metrics[name] == pytest.approx(expected[name], rel=1e-6), name


@few_examples
@given(shapes, seeds, distances)
def test_gspo_and_gspo_token_have_one_loss_and_gradient(shape, seed, distance):
    logp, old, _, advantages, mask = draw_batch(*shape, seed, distance)

    def gspo(x):
        return policy_loss(x, advantages, mask, old, importance_sampling_level="sequence")[0]

    for ratio in (gspo_token_ratio, oracles.gspo_token_ratio):
        assert_agree(
            lambda x, ratio=ratio: aggregate(-clipped_surrogate(ratio(x, old, mask), advantages), mask, "grpo"),
            gspo,
            logp,
        )


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_policy_loss_of_an_empty_mask_is_zero(loss_type):
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


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"loss_type": "ppo"}, "loss_type is 'ppo'; expected one of 'grpo', "),
        ({"loss_type": "dr_grpo"}, "max_completion_length is None; 'dr_grpo' needs one of at least 1"),
        ({"importance_sampling_level": "batch"}, "importance_sampling_level is 'batch'; expected one of 'token', "),
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon_high": -0.1}, "epsilon_high"),
        ({"delta": 1.1}, "delta"),
        ({"advantages": torch.tensor([1.0, math.nan])}, "advantages holds NaN or infinite values; all of them must"),
        ({"beta": math.nan}, "beta"),
        ({"kl_estimator": "k4"}, "kl_estimator is 'k4'; expected one of 'k1', 'k2', 'k3', 'k3+'"),
        ({"beta": 0.1, "ref_logp": None}, "ref_logp"),
        ({"loss_type": "dapo", "num_items": math.nan}, "num_items"),
        ({"loss_type": "cispo", "epsilon_high": math.nan}, "epsilon_high"),
        ({"loss_type": "sapo", "sapo_temperature_pos": 0.0}, "sapo_temperature_pos is 0.0; it must lie in (0, inf)"),
        ({"loss_type": "sapo", "sapo_temperature_neg": math.nan}, "sapo_temperature_neg"),
        ({"loss_type": "vespo", "vespo_k_neg": -1.0}, "vespo_k_neg"),
        ({"loss_type": "vespo", "vespo_lambda_pos": math.nan}, "vespo_lambda_pos"),
        (
            {"epsilon_hihg": 0.3},
            "epsilon_hihg is no setting of a loss; expected one of epsilon, epsilon_high, d",
        ),
    ],
)
def test_policy_loss_refuses_bad_settings_by_name(keywords, named):
    logp, old, ref, advantages, mask = draw_batch(2, 3, 0)
    with pytest.raises(ValueError, match=re.escape(named)):
        policy_loss(logp, mask=mask, old_logp=old, **({"advantages": advantages, "ref_logp": ref} | keywords))
