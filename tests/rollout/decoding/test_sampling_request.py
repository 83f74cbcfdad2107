"""Only settings of the caller change the distribution that is drawn from and recorded; the parts of a request."""

import pytest
import torch
from transformers import GenerationConfig

from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout import end_token_ids
from grpo_lab.rollout.decoding.sampling_request import SamplingRequest
from grpo_lab.rollout.rollout import EncodedPrompts
from tests.support.sampling import SETTINGS, logprobs_of, next_logits, sample, tokens_of
from tests.support.small_policy import make_policy

# --- the checkpoint's settings, and ours ----------------------------------------------------------------------------

PLANTED = {"do_sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.8, "repetition_penalty": 1.1}


@pytest.mark.parametrize("cache", ["dynamic", None])
def test_the_settings_of_the_checkpoint_have_no_effect_and_are_put_back(cache):
    model, tokenizer = make_policy()
    neutral = sample(model, tokenizer, cache_implementation=cache)
    planted = GenerationConfig(
        **PLANTED, eos_token_id=end_token_ids(model, tokenizer), max_new_tokens=2, min_new_tokens=2, typical_p=0.5
    )
    model.generation_config = planted
    config = planted.to_dict()
    rollout = sample(model, tokenizer, cache_implementation=cache)
    assert torch.equal(rollout.completion_ids, neutral.completion_ids) and torch.equal(rollout.logp, neutral.logp)
    assert model.generation_config is planted and planted.to_dict() == config


def expected_probabilities(logits, prefix, temperature, top_k, top_p, repetition_penalty):
    """Return the distribution that the settings define, computed step by step; 0 at excluded tokens."""
    logits = logits.double().tolist()
    for token in set(prefix):
        logits[token] = logits[token] / repetition_penalty if logits[token] > 0 else logits[token] * repetition_penalty
    logits = [x / temperature for x in logits]
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[: top_k or None]
    top = max(logits)
    exponentials = torch.tensor([x - top for x in logits], dtype=torch.float64).exp()
    total, mass, nucleus = sum(exponentials[token] for token in order), 0.0, []
    for token in order:
        if mass < top_p:
            nucleus.append(token)
        mass += exponentials[token] / total
    chances = torch.zeros(len(logits), dtype=torch.float64)
    chances[nucleus] = exponentials[nucleus] / exponentials[nucleus].sum()
    return chances


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_recorded_logprobs_are_those_of_the_sampling_settings(settings):
    """The expected values come from one forward pass for each row, without padding and cache."""
    model, tokenizer = make_policy(pad_is_end=True)
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0} | settings
    rollout = sample(model, tokenizer, generations=3, **settings)
    for b in range(len(rollout.mask)):
        prompt, completion = tokens_of(rollout, b)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0, len(prompt) - 1 :]
        for t, token in enumerate(completion):
            chances = expected_probabilities(logits[t], prompt + completion[:t], **full)
            assert chances[token] > 0
            assert rollout.logp[b, t].item() == pytest.approx(chances[token].log().item(), abs=1e-4)
            positive = chances[chances > 0]
            assert rollout.entropy[b, t].item() == pytest.approx(-(positive * positive.log()).sum().item(), abs=1e-4)
    logp, _ = logprobs_of(model, rollout, temperature=full["temperature"])
    difference = (logp - rollout.logp)[rollout.mask].abs().max()
    assert difference < 1e-4 if settings.keys() <= {"temperature"} else difference > 1e-2, "others show"


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.6, "top_k": 6}, {"cache_implementation": "dynamic"}], ids=str
)
def test_sampled_token_frequencies_are_the_models_probabilities(settings):
    model, tokenizer = make_policy()
    n = 6000
    rollout = sample(model, tokenizer, ["ab+"], length=2, generations=n, **settings)
    settings = {name: value for name, value in settings.items() if name != "cache_implementation"}
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0} | settings
    first, prompt = rollout.completion_ids[:, 0], tokenizer("ab+")["input_ids"]
    assert_frequencies(first, expected_probabilities(next_logits(model, prompt), [], **full))
    common = first[~torch.isin(first, torch.tensor(end_token_ids(model, tokenizer)))].mode().values.item()
    second = rollout.completion_ids[first == common, 1]
    assert_frequencies(second, expected_probabilities(next_logits(model, [*prompt, common]), [], **full))


def assert_frequencies(samples, chances):
    """Pearson's statistic is about the number of cells. Eight standard deviations more would not be chance."""
    counts = samples.bincount(minlength=len(chances)).double()
    assert (counts[chances == 0] == 0).all()
    expected = chances[chances > 0] * len(samples)
    statistic, cells = ((counts[chances > 0] - expected) ** 2 / expected).sum().item(), len(expected)
    assert statistic < cells + 8 * (2 * cells) ** 0.5


def test_parts_of_a_request_have_equally_many_prompts():
    ids = torch.arange(12).view(6, 2)
    request = SamplingRequest(EncodedPrompts(ids, ids >= 0), SamplingParams(2, 3), (3,), 3)
    parts = request.in_parts(3)
    assert [len(part.prompts.ids) for part in parts] == [2, 2, 2]
    assert torch.equal(torch.cat([part.prompts.ids for part in parts]), ids)
    assert [(part.first_row, part.num_rollout_rows) for part in parts] == [(0, 12), (4, 12), (8, 12)]
    with pytest.raises(AssertionError, match="4 parts of 6 prompts"):
        request.in_parts(4)
