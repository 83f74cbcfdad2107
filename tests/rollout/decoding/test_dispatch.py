"""The choice of a sampler, and rollouts that are drawn in parts."""

import pytest
import torch

from grpo_lab.rollout.decoding import dispatch
from grpo_lab.rollout.decoding.cpu_decoder import CpuDecoder
from grpo_lab.rollout.model import has_fast_path
from tests.support.sampling import PROMPTS, SETTINGS, assert_same_rollouts, sample
from tests.support.small_policy import make_policy

WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[-1]], ids=str)
def test_a_rollout_in_parts_draws_what_it_draws_in_one(parts, settings, monkeypatch):
    model, tokenizer = make_policy()
    whole, state = sample(model, tokenizer, PROMPTS[:4], **settings), torch.get_rng_state()
    monkeypatch.setattr(dispatch, "parts_that_fit", lambda *sizes: parts)
    assert_same_rollouts(whole, sample(model, tokenizer, PROMPTS[:4], **settings), 1e-5)
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_whose_step_depends_on_the_length_is_sampled_by_generate(monkeypatch):
    adapting = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    assert has_fast_path(make_policy()[0])
    monkeypatch.setattr(CpuDecoder, "run", None)  # fails if it is called
    for settings in (WINDOWS, adapting):
        policy = make_policy(**settings)
        assert not has_fast_path(policy[0]) and sample(*policy).mask.any()
    assert sample(*make_policy(), cache_implementation="dynamic").mask.any()
