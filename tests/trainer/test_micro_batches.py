"""Micro-batches of rows alike in length, prompts without common padding, checkpointed layers: cheaper, and the same."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.models.shapes import random_policy
from grpo_lab.rollout import Rollout
from grpo_lab.trainer import accumulate_gradient
from grpo_lab.trainer import experience as experience_module
from grpo_lab.trainer import loop as trainer
from grpo_lab.trainer.experience import Experience, by_length, score_all
from grpo_lab.trainer.optim import GuardedOptimizer
from tests.support.worlds import make_config, make_exact, make_world

T, LENGTHS, PROMPTS = 24, (3, 24, 5, 23, 2, 22, 4, 24), (4, 9)


def ragged(lengths=LENGTHS, inactive=(), vocabulary=15):
    """Rows of two prompts of 4 and 9 tokens, with random tokens and advantages."""
    generator = torch.Generator().manual_seed(0)
    B, L = len(lengths), max(PROMPTS)
    mask = torch.arange(T) < torch.tensor(lengths)[:, None]
    ids = torch.randint(vocabulary, (B, T), generator=generator)
    prompt_ids = torch.randint(vocabulary, (2, L), generator=generator)
    prompt_mask = torch.arange(L) >= L - torch.tensor(PROMPTS)[:, None]
    zeros = torch.zeros(B, T)
    rollout = Rollout(prompt_ids, prompt_mask, ids, mask, zeros, zeros, mask[:, -1], [""] * B)
    active = torch.tensor([row not in inactive for row in range(B)])
    return Experience(rollout, zeros[:, 0], torch.randn(B, generator=generator) * active, mask, active)


@given(st.lists(st.tuples(st.integers(1, T), st.booleans()), min_size=2, max_size=12).filter(lambda r: len(r) % 2 == 0))
def test_longest_first_rows_without_gradient_last(rows):
    experience = ragged([n for n, _ in rows], inactive=[b for b, (_, active) in enumerate(rows) if not active])
    got = by_length(experience, torch.arange(len(rows))).tolist()
    want = sorted(range(len(rows)), key=lambda b: (-rows[b][0] * rows[b][1], b))
    assert got == want


def spy_on_shapes(monkeypatch):
    shapes, score = [], experience_module.score_logprobs

    def spy(model, prompt_ids, prompt_mask, completion_ids, *more, **keywords):
        shapes.append((prompt_ids.shape[1], *completion_ids.shape, keywords["share_prompts"]))
        return score(model, prompt_ids, prompt_mask, completion_ids, *more, **keywords)

    monkeypatch.setattr(experience_module, "score_logprobs", spy)
    return shapes


def gradient(experience, config, sort=True):
    model = make_exact(make_world()[0])
    with pytest.MonkeyPatch.context() as patch:
        if not sort:
            patch.setattr(trainer, "by_length", lambda experience, rows: rows)
        rows = torch.arange(len(experience))
        metrics = accumulate_gradient(model, GuardedOptimizer(model, config), experience, rows, config)
    return torch.cat([p.grad.flatten() for p in model.parameters()]), metrics


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo"])
@pytest.mark.parametrize("inactive", [(), (1, 4, 6)], ids=str)
def test_the_order_of_rows_saves_padding_and_changes_no_gradient(loss_type, inactive, monkeypatch):
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_completion_length": T}
    experience, config = ragged(inactive=inactive), make_config(loss_type=loss_type, **settings)
    shapes = spy_on_shapes(monkeypatch)
    in_order, metrics = gradient(experience, config)
    sorted_shapes, shapes[:] = list(shapes), []
    as_they_came, other = gradient(experience, config, sort=False)
    torch.testing.assert_close(in_order, as_they_came, rtol=0, atol=1e-10)
    assert metrics == pytest.approx(other, abs=1e-6)
    if loss_type == "bnpo":
        assert sorted_shapes == shapes, "its mean depends on the rows of a micro-batch: they stay as they were drawn"
        return
    padded = sum(rows * length for _, rows, length, _ in sorted_shapes)
    real = sum(length for row, length in enumerate(LENGTHS) if row not in inactive)
    assert real <= padded <= 1.1 * real and len(sorted_shapes) < len(shapes), "fewer passes, and hardly any padding"


def test_padding_that_all_prompts_share_is_left_out_and_prompts_are_shared_only_where_that_saves(monkeypatch):
    shapes = spy_on_shapes(monkeypatch)
    experience = ragged()
    model = make_exact(make_world()[0])
    for rows, want in [([0, 2], (4, 2, 5, True)), ([5], (9, 1, 22, False)), ([1, 7], (9, 2, 24, False))]:
        logp, _ = experience_module.score_rows(model, experience, torch.tensor(rows), make_config())
        assert shapes.pop() == want
        for row, got in zip(rows, logp, strict=True):
            assert got.dtype == torch.float64 and got.sum() != 0
            alone = experience_module.score_rows(model, experience, torch.tensor([row]), make_config())[0][0]
            inside = experience.mask[row]
            torch.testing.assert_close(got[inside], alone[inside], rtol=0, atol=1e-12)
        shapes.clear()


def test_scores_of_all_rows_come_back_in_their_own_order():
    model, experience = make_exact(make_world()[0]), ragged(inactive=(2,))
    whole = score_all(model, experience, make_config())
    config = make_config(per_device_train_batch_size=2, gradient_accumulation_steps=4)
    in_parts = score_all(model, experience, config)
    inside = experience.mask
    torch.testing.assert_close(whole[inside], in_parts[inside], rtol=0, atol=1e-12)
    for row in range(len(experience)):
        alone = experience_module.score_rows(model, experience, torch.tensor([row]), config)[0][0]
        torch.testing.assert_close(in_parts[row, inside[row]], alone[inside[row]].double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpointed_layers_give_the_same_values_and_gradients(dtype):
    """Dropout in the configuration, silenced as a run does, and a model in training mode, as checkpointing needs it."""
    from grpo_lab.models.frozen import silence_dropout

    plain = random_policy("small", dtype=dtype)
    plain.config.attention_dropout = 0.5
    for layer in plain.model.layers:
        layer.self_attn.attention_dropout = 0.5
    silence_dropout(plain)
    checkpointed = copy.deepcopy(plain)
    checkpointed.gradient_checkpointing_enable()
    checkpointed.train()
    experience, outcomes = ragged(vocabulary=4096), []
    for model in (plain, checkpointed):
        config = make_config(gradient_checkpointing=True)
        rows = torch.arange(len(experience))
        logp, _ = experience_module.score_rows(model, experience, rows, config)
        (logp * experience.mask * experience.advantages[:, None]).sum().backward()
        outcomes.append((logp[experience.mask], [p.grad for p in model.parameters()]))
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    for one, other in zip(outcomes[0][1], outcomes[1][1], strict=True):
        assert one.abs().max() > 0 or one.shape == (64,)  # the bias of the keys moves nothing
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * one.abs().max().item())
