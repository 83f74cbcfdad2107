"""Rows of very different length are scored in groups, which saves padding and changes no number."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.rollout import Rollout
from grpo_lab.trainer import experience as experience_module
from grpo_lab.trainer.experience import Experience, score_rows, similar_lengths
from tests.support.worlds import make_config, make_exact, make_world

LENGTHS = (1, 1, 2, 3, 16, 2, 1, 9)
P, G, T = 2, 4, 16


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_groups_hold_every_row_once_and_little_padding(lengths):
    rows, lengths = torch.arange(100, 100 + len(lengths)), torch.tensor(lengths)
    groups = similar_lengths(rows, lengths)
    assert sorted(torch.cat(groups).tolist()) == rows.tolist()
    whole = len(rows) * lengths.max()
    if 3 * (whole - lengths.sum()) <= whole:
        assert len(groups) == 1, "little to save"
        return
    padded = 0
    for group in groups:
        own = lengths[group - 100]
        assert own.max() < 2 * own.min() or own.max() == own.min() == 1
        padded += len(group) * own.max()
    assert padded <= 2 * lengths.sum()


def test_no_row_no_group():
    assert similar_lengths(torch.arange(0), torch.arange(0)) == []


def ragged_experience(inactive=()):
    """Random tokens of the given lengths, with random advantages; the rows in `inactive` carry no gradient."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(15, (P * G, T), generator=generator)
    zeros, prompt_mask = torch.zeros(P * G, T), torch.tensor([[True] * 4, [False] + [True] * 3])
    prompt_ids = torch.randint(15, (P, 4), generator=generator)
    rollout = Rollout(prompt_ids, prompt_mask, ids, mask, zeros, zeros, mask[:, -1], [""] * (P * G))
    active = torch.tensor([row not in inactive for row in range(P * G)])
    return Experience(rollout, zeros[:, 0], torch.randn(P * G, generator=generator), mask, active)


def outcome(experience, config, rows):
    model = make_exact(make_world()[0])
    inside = experience.mask[rows]
    values = [torch.where(inside, x, 0) for x in score_rows(model, experience, rows, config) if x is not None]
    total = sum((x.square() * experience.advantages[rows, None]).sum() for x in values)
    return values, torch.autograd.grad(total, list(model.parameters()))


@pytest.mark.parametrize("settings", [{}, {"entropy_coef": 0.1}, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize("inactive", [(), (1, 4)], ids=str)
def test_values_and_gradients_are_those_of_all_rows_together(settings, inactive, monkeypatch):
    experience, config = ragged_experience(inactive), make_config(**settings)
    rows, seen = torch.tensor([7, 0, 4, 1, 3, 2, 6, 5]), []
    score = experience_module.score_logprobs

    def spy(model, prompt_ids, prompt_mask, completion_ids, *more, **keywords):
        seen.append(tuple(completion_ids.shape))
        return score(model, prompt_ids, prompt_mask, completion_ids, *more, **keywords)

    monkeypatch.setattr(experience_module, "score_logprobs", spy)
    apart = outcome(experience, config, rows)
    in_groups, seen[:] = list(seen), []
    monkeypatch.setattr(experience_module, "similar_lengths", lambda rows, lengths: [rows])
    together = outcome(experience, config, rows)
    assert len(in_groups) > 1 and len(seen) == 1
    assert (
        sum(r for r, _ in in_groups) == seen[0][0] and sum(r * t for r, t in in_groups) < 0.5 * seen[0][0] * seen[0][1]
    )
    assert len(apart[0]) == len(together[0]) == (2 if config.entropy_coef else 1)
    for one, other in zip(apart[0], together[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        assert (one[~experience.active[rows]] == 0).all() and (one[experience.active[rows], 0] != 0).all()
    for one, other in zip(apart[1], together[1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
