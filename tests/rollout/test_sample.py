"""Sampled and recomputed log-probabilities agree for any prompt, padding and end; parts; the fields of a rollout."""

from dataclasses import replace

import pytest
import torch

from grpo_lab.rollout import end_token_ids, read_sequences, sample_completions
from grpo_lab.rollout.decoding.decoder import CpuDecoder
from grpo_lab.rollout.forward import model_logprobs
from grpo_lab.rollout.model import FAST_FAMILIES, has_fast_path
from tests.support.architectures import make_architecture
from tests.support.sampling import PROMPTS, SETTINGS, T, assert_same_rollouts, logprobs_of, sample, tokens_of
from tests.support.small_policy import END, PAD, make_exact, make_policy

WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


@pytest.mark.parametrize(("cache", "pad_is_end"), [(None, False), (None, True), ("dynamic", True)])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_recorded_logprobs_are_the_recomputed_ones(temperature, cache, pad_is_end):
    model, tokenizer = make_policy(pad_is_end=pad_is_end)
    rollout = sample(model, tokenizer, temperature=temperature, generations=40, cache_implementation=cache)
    lengths = rollout.mask.sum(-1)
    assert (lengths == 1).any() and rollout.truncated.any() and ((lengths > 1) & ~rollout.truncated).any()
    assert len(set(rollout.prompt_mask.sum(-1).tolist())) > 2, "the prompts should be ragged"
    assert any(tokenizer.eos_token_id in tokens_of(rollout, b)[0] for b in range(len(lengths)))
    logp, entropy = logprobs_of(model, rollout, temperature=temperature)
    assert (logp - rollout.logp)[rollout.mask].abs().max() < 1e-4
    assert (entropy - rollout.entropy)[rollout.mask].abs().max() < 1e-4
    assert logp.isfinite().all() and entropy.isfinite().all()
    assert (rollout.logp[~rollout.mask] == 0).all() and (rollout.entropy[~rollout.mask] == 0).all()


def gradients(model, rollout, **settings):
    cotangent = torch.Generator().manual_seed(1)
    logp_and_entropy, loss = logprobs_of(model, rollout, temperature=0.8, **settings), 0
    for values in logp_and_entropy:
        weight = torch.randn(values.shape, generator=cotangent, dtype=values.dtype)
        loss = loss + (values * weight * rollout.mask).sum()
    return logp_and_entropy, torch.autograd.grad(loss, list(model.parameters()))


def assert_same_gradients(loss, other_loss, tolerance):
    for a, b in zip(loss, other_loss, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAST_FAMILIES)
def test_one_pass_gives_what_whole_rows_give_through_the_models_own_forward_pass(family, checkpointing, monkeypatch):
    model, tokenizer = make_architecture(family)
    make_exact(model)
    rollout = sample(model, tokenizer, temperature=0.8)[torch.tensor([29, 3, 3, 17, 0, 12, 1])]
    shorter = torch.arange(T) < torch.tensor([6, 1, 3, 6, 2, 5, 4])[:, None]
    rollout = replace(rollout, mask=rollout.mask & shorter)
    assert not rollout.prompt_mask.all()
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    packed = gradients(model, rollout)
    monkeypatch.setattr(model_logprobs, "has_fast_path", lambda model: False)
    whole = gradients(model, rollout)
    for a, b in zip(packed[0], whole[0], strict=True):
        torch.testing.assert_close(a[rollout.mask], b[rollout.mask], rtol=0, atol=1e-12)
    assert_same_gradients(packed[1], whole[1], 1e-10)


def test_large_logits_go_through_the_chunked_head_with_the_same_result(monkeypatch):
    model, tokenizer = make_policy()
    make_exact(model)
    rollout = sample(model, tokenizer)
    calls = []
    chunked = model_logprobs.chunked_logprobs_and_entropy

    def spy(*arguments):
        calls.append(arguments[-1])
        return chunked(*arguments)

    monkeypatch.setattr(model_logprobs, "chunked_logprobs_and_entropy", spy)
    plain = gradients(model, rollout)[1]
    assert not calls
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 4 * len(tokenizer) * 7)
    assert_same_gradients(gradients(model, rollout)[1], plain, 1e-9)
    assert calls == [7], "seven tokens at a time are a quarter of the limit"


@pytest.mark.parametrize("at_once", [2**25, 100])
def test_compute_logprobs_without_entropy_returns_the_same_logprobs(at_once, monkeypatch):
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", at_once)
    model, tokenizer = make_policy()
    rollout = sample(model, tokenizer)
    logp, entropy = logprobs_of(model, rollout, with_entropy=False)
    assert entropy is None  # without entropy, chunks use another formula, which rounds differently
    torch.testing.assert_close(logp, logprobs_of(model, rollout)[0], rtol=0, atol=2e-6 if at_once == 100 else 0)


def test_the_first_end_token_belongs_to_the_completion_and_nothing_after_it():
    model, tokenizer = make_policy(pad_is_end=True)
    rollout = sample(model, tokenizer, generations=12)
    ends = end_token_ids(model, tokenizer)
    for b in range(len(rollout.mask)):
        ids = rollout.completion_ids[b].tolist()
        first = next((t for t, token in enumerate(ids) if token in ends), None)
        length = len(ids) if first is None else first + 1
        assert rollout.mask[b].tolist() == [t < length for t in range(len(ids))]
        assert rollout.truncated[b].item() is (first is None)
        assert rollout.texts[b] == tokenizer.decode(ids[:first], skip_special_tokens=True)
    assert not rollout.logp.requires_grad


def test_read_sequences_splits_what_was_sampled_and_decodes_it():
    model, tokenizer = make_policy(pad_is_end=True)
    rollout = sample(model, tokenizer, generations=12)
    prompts = rollout.prompt_ids[rollout.prompt_of_row]
    sequences = torch.cat([prompts, rollout.completion_ids], dim=1)
    ends = end_token_ids(model, tokenizer)
    completion_ids, mask, truncated, texts = read_sequences(sequences, prompts.shape[1], ends, tokenizer)
    assert torch.equal(completion_ids, rollout.completion_ids) and torch.equal(mask, rollout.mask)
    assert torch.equal(truncated, rollout.truncated) and texts == rollout.texts


@pytest.mark.parametrize("tag", [None, "<think>"])
def test_each_prompt_and_each_completion_is_decoded_once(tag, monkeypatch):
    model, tokenizer = make_policy()
    if tag is not None:
        tokenizer.add_tokens([tag, "</think>"], special_tokens=True)
        model.resize_token_embeddings(len(tokenizer))
    decoded, decode = [], type(tokenizer).decode

    def spy(self, *arguments, **settings):
        decoded.append(decode(self, *arguments, **settings))
        return decoded[-1]

    monkeypatch.setattr(type(tokenizer), "decode", spy)
    rollout = sample(model, tokenizer, ["a", "bc"], generations=3)
    assert decoded == ["a", "bc", *rollout.texts]


def test_every_end_token_of_the_checkpoint_ends_a_completion():
    model, tokenizer = make_policy()
    assert end_token_ids(model, tokenizer) == sorted(tokenizer.convert_tokens_to_ids([END, PAD]))
    rollout = sample(model, tokenizer, generations=60)
    last = rollout.completion_ids.gather(1, rollout.mask.sum(-1, keepdim=True) - 1)[~rollout.truncated]
    assert set(last.flatten().tolist()) == set(end_token_ids(model, tokenizer))
    model.generation_config.eos_token_id = None
    assert end_token_ids(model, tokenizer) == [tokenizer.eos_token_id]


def test_sampled_completions_are_never_encoded_again(monkeypatch):
    model, tokenizer = make_policy()
    encoded = []
    call = type(tokenizer).__call__
    monkeypatch.setattr(
        type(tokenizer), "__call__", lambda self, text, **keywords: encoded.append(text) or call(self, text, **keywords)
    )
    rollout = sample(model, tokenizer, ["a", "bc"], generations=40)
    logprobs_of(model, rollout)
    assert encoded == ["a", "bc"]
    monkeypatch.undo()
    completions = [tokens_of(rollout, b)[1] for b in range(len(rollout.mask))]
    again = [tokenizer(text)["input_ids"] for text in rollout.texts]
    ends = end_token_ids(model, tokenizer)
    differ = sum(new_ids != [i for i in ids if i not in ends] for new_ids, ids in zip(again, completions, strict=True))
    assert differ > 0, "with this tokenizer, encoding the text again gives other tokens than were sampled"


@pytest.mark.parametrize("cache", [None, "dynamic"])
def test_sampling_reaches_every_token_of_the_vocabulary(cache, tiny):
    """By default, `generate` draws only from the 50 most likely tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rollout = sample_completions(*tiny, ["1+2="], 400, 1, temperature=1e3, cache_implementation=cache)
    assert len(rollout.completion_ids.unique()) > 100


def test_sample_completions_refuses_wrong_settings_by_name():
    wrong = [("num_generations", 0), ("max_completion_length", 0), ("top_k", -1), ("repetition_penalty", 0.0)]
    wrong += [("temperature", 0.0), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.5)]
    policy = make_policy()
    for name, value in wrong:
        arguments = {"num_generations": 2, "max_completion_length": 3} | {name: value}
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be"):
            sample_completions(*policy, ["a"], **arguments)
    with pytest.raises(ValueError, match="cache_implementation is 'paged'; expected one of None, 'dynamic'"):
        sample(*policy, cache_implementation="paged")


WRONG_PROMPTS = [
    ([], "prompts is empty"),
    ([["a"]], r"prompts\[0\] is \['a'\]; expected a string or a non-empty list of messages"),
    (["a", ""], r"prompts\[1\] is '', which has no token"),
    (["a", [{"content": "b"}]], r"prompts\[1\]\[0\]\['role'\] is missing; expected a text"),
    ([[{"role": "user", "content": [{"type": "text"}]}]], r"\['content'\] is \[\{'type': 'text'\}\]; expected a"),
    (["a", "b" * 122], r"prompts\[1\] has 122 tokens and max_completion_length is 7; together .* be at most 128"),
]


def test_sample_completions_refuses_wrong_prompts_by_name(monkeypatch):
    model, tokenizer = make_policy()
    monkeypatch.setattr(model, "forward", None)  # fails if anything is computed before the error
    for prompts, message in WRONG_PROMPTS:
        with pytest.raises(ValueError, match=message):
            sample(model, tokenizer, prompts, length=7)


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[-1]], ids=str)
def test_a_rollout_in_parts_draws_what_it_draws_in_one(parts, settings, monkeypatch):
    model, tokenizer = make_policy()
    whole, state = sample(model, tokenizer, PROMPTS[:4], **settings), torch.get_rng_state()
    monkeypatch.setattr("grpo_lab.rollout.sample.parts_that_fit", lambda *sizes: parts)
    assert_same_rollouts(whole, sample(model, tokenizer, PROMPTS[:4], **settings), 1e-5)
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_whose_step_depends_on_the_length_is_sampled_by_generate(monkeypatch):
    adapting = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    assert has_fast_path(make_policy()[0])
    monkeypatch.setattr(CpuDecoder, "draw_completions", None)  # fails if it is called
    for settings in (WINDOWS, adapting):
        policy = make_policy(**settings)
        assert not has_fast_path(policy[0]) and sample(*policy).mask.any()
    assert sample(*make_policy(), cache_implementation="dynamic").mask.any()
