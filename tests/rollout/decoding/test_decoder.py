"""Our decoders draw the tokens of `generate`, record the recomputed log-probabilities, and restore the model."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab.base.checks import RunError
from grpo_lab.rollout.decoding import decoder as decoder_module
from grpo_lab.rollout.decoding.cache import InPlaceCache, autocast_copies
from grpo_lab.rollout.decoding.cpu_decoder import CpuDecoder, inverse_cdf
from grpo_lab.rollout.decoding.dispatch import DECODERS
from grpo_lab.rollout.decoding.graph_decoder import exponential_race
from grpo_lab.rollout.decoding.sampling_request import entropy_of
from tests.support.few_fast import few_fast
from tests.support.sampling import PROMPTS, SETTINGS, assert_same_rollouts, logprobs_of, sample
from tests.support.small_policy import make_exact, make_policy


def sample_by_both(model, tokenizer, *arguments, **settings):
    """Sample by `generate` and by the CPU decoder with one seed; return both rollouts and both random states after.

    The decoder draws by the exponential race here, as `generate` does.
    """
    rollouts, states = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDecoder, "draw", draw_by_race)
        for cache in ("dynamic", None):
            rollouts.append(sample(model, tokenizer, *arguments, cache_implementation=cache, **settings))
            states.append(torch.get_rng_state())
    return rollouts, states


def draw_by_race(decoder, log_pi, pi):
    noise = log_pi.new_empty(len(decoder.sequences), log_pi.shape[1]).exponential_()
    return exponential_race(log_pi[decoder.prefix_index], noise[decoder.rows])


def reference_draw_and_entropy(log_pi, u, distribution):
    """Draw and entropy, each of which computes the probabilities itself."""
    cdf = log_pi.exp().double().cumsum_(-1)
    stacked = cdf.div_(cdf[:, -1:].clone()).add_(torch.arange(len(cdf))[:, None]).flatten()
    token = torch.searchsorted(stacked, distribution + u, right=True) - distribution * log_pi.shape[1]
    return token, -(log_pi.exp() * log_pi.clamp(min=-1e9)).sum(-1)


def test_draw_and_entropy_from_one_exponential_are_the_same_to_the_bit():
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):
        log_pi = (5 * torch.randn(7, 5000, generator=generator)).log_softmax(-1)
        log_pi[:, seed] = -torch.inf  # an excluded token adds nothing to the entropy
        u, distribution = torch.rand(40, dtype=torch.float64, generator=generator), torch.arange(40) % 7
        token, entropy = reference_draw_and_entropy(log_pi, u, distribution)
        assert torch.equal(inverse_cdf(log_pi.exp(), u, distribution), token)
        assert torch.equal(entropy_of(log_pi, log_pi.exp()), entropy)


def test_a_step_makes_the_exponential_of_its_logits_once(monkeypatch):
    model, tokenizer = make_policy()
    is_over_vocabulary = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if function.overloadpacket in (torch.ops.aten.exp, torch.ops.aten.exp_):
                is_over_vocabulary.append(arguments[0].shape[-1] == model.config.vocab_size)
            return function(*arguments, **(keywords or {}))

    steps, step = [], CpuDecoder.step
    monkeypatch.setattr(CpuDecoder, "step", lambda decoder: (steps.append(1), step(decoder)))
    with Counts():
        sample(model, tokenizer)
    assert sum(is_over_vocabulary) == len(steps) > 0


def one_prefix_per_row(decoder):
    """Stands in for `regroup_rows`: each row keeps a prefix of its own until all rows have ended."""
    decoder.token = decoder.sequences[:, decoder.write_column]
    if len(decoder.position) < len(decoder.rows):
        decoder.position, decoder.visible = (x[decoder.prefix_index] for x in (decoder.position, decoder.visible))
        decoder.cache.continue_prefixes(decoder.prefix_index)
        decoder.prefix_index = decoder.representative_row = decoder.rows


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_shared_prefixes_are_read_once_and_change_no_completion(settings, monkeypatch):
    model, tokenizer = make_policy()
    read, step = [], CpuDecoder.step
    monkeypatch.setattr(CpuDecoder, "step", lambda decoder: (read.append(len(decoder.position)), step(decoder)))
    shared, state = sample(model, tokenizer, generations=20, **settings), torch.get_rng_state()
    rows = list(zip(shared.prompt_of_row.tolist(), shared.completion_ids.tolist(), shared.mask.sum(-1), strict=True))
    assert read == [len({(p, *ids[:t]) for p, ids, length in rows if length > t}) for t in range(len(read))]
    monkeypatch.setattr(CpuDecoder, "regroup_rows", one_prefix_per_row)
    assert_same_rollouts(shared, sample(model, tokenizer, generations=20, **settings), 1e-5)
    assert max(read) == len(rows) and torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("settings", "pad_is_end"), few_fast([(case,) for case in SETTINGS], (False, True)), ids=str)
def test_the_same_seed_draws_the_same_completions_as_generate(settings, pad_is_end):
    model, tokenizer = make_policy(pad_is_end=pad_is_end)
    (expected, decoded), random_states = sample_by_both(model, tokenizer, generations=20, **settings)
    lengths = decoded.mask.sum(-1)
    assert (lengths == 1).any() and decoded.truncated.any() and len(set(decoded.prompt_mask.sum(-1).tolist())) > 2
    assert_same_rollouts(expected, decoded)
    assert torch.equal(*random_states), "the same numbers were drawn, and as many"


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_plain_decoder_draws_the_completions_of_generate(settings, monkeypatch):
    """`Decoder` is for devices without a decoder of their own. Like `generate`, it stops when all rows have ended."""
    monkeypatch.delitem(DECODERS, "cpu")
    model, tokenizer = make_policy(pad_is_end=True)
    for length in (1, 6, 20):
        expected = sample(model, tokenizer, length=length, cache_implementation="dynamic", **settings)
        state = torch.get_rng_state()
        assert_same_rollouts(expected, sample(model, tokenizer, length=length, **settings))
        assert torch.equal(state, torch.get_rng_state())
    model.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(RunError, match="logits are not finite"):
        sample(model, tokenizer, **settings)


@pytest.mark.parametrize("prompts", [["d"], ["a", "b"], ["abc"], PROMPTS])
def test_decoders_draw_and_score_alike_for_every_size(prompts):
    model, tokenizer = make_policy(scale=0.1)
    for length, generations in ((1, 1), (1, 3), (2, 3), (70, 1)):
        (expected, decoded), _ = sample_by_both(model, tokenizer, prompts, length=length, generations=generations)
        assert_same_rollouts(expected, decoded)
        logp, _ = logprobs_of(model, decoded)
        assert (logp - decoded.logp)[decoded.mask].abs().max() < 1e-4


@pytest.mark.parametrize("heads", [(4, 1), (4, 4), (6, 3)], ids=str)
def test_decoders_agree_for_any_number_of_shared_heads_and_any_attention(heads):
    sizes = {"hidden_size": 24, "num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    for attention in ("sdpa", "eager"):
        model, tokenizer = make_policy(**sizes)
        model.set_attn_implementation(attention)
        (expected, decoded), _ = sample_by_both(model, tokenizer)
        assert_same_rollouts(expected, decoded)
        assert model.config._attn_implementation == attention, "put back"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_weights_rounded_once_a_rollout_give_what_autocast_gives_bit_for_bit(dtype, tied, monkeypatch):
    model, tokenizer = make_policy(tie_word_embeddings=tied)
    with torch.autocast("cpu", dtype=dtype):
        copies = autocast_copies(model)
        ours = sample(model, tokenizer, generations=10)
        monkeypatch.setattr(decoder_module, "autocast_copies", lambda model: {})
        by_autocast = sample(model, tokenizer, generations=10)
        logp, _ = logprobs_of(model, ours)
    assert copies["lm_head.weight"].dtype == dtype and copies["model.layers.0.self_attn.q_proj.bias"].dtype == dtype
    assert not any("embed" in name or "norm" in name for name in copies), "autocast leaves these in float32"
    assert_same_rollouts(ours, by_autocast, tolerance=1e-12)
    assert (logp - ours.logp)[ours.mask].abs().mean() < 0.05
    assert autocast_copies(model) == {}, "without autocast there is nothing to round"


def test_a_bf16_model_keeps_its_cache_in_bf16():
    model, tokenizer = make_policy()
    model.bfloat16()
    rollout = sample(model, tokenizer, generations=10)
    logp, _ = logprobs_of(model, rollout)
    assert rollout.logp.dtype == torch.float32 and (logp - rollout.logp)[rollout.mask].abs().max() < 0.1
    assert InPlaceCache(model, 2, 64, torch.zeros(1, dtype=torch.long)).dtype == torch.bfloat16


def test_earlier_contents_of_the_cache_have_no_effect(monkeypatch):
    model, tokenizer = make_policy()
    clean = sample(model, tokenizer)
    load = InPlaceCache.load

    def poisoned(cache, prefix, copies):
        for tensor in (*cache.keys, *cache.values):
            tensor.fill_(torch.nan)
        load(cache, prefix, copies)

    monkeypatch.setattr(InPlaceCache, "load", poisoned)
    assert_same_rollouts(clean, sample(model, tokenizer), tolerance=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_sampling_restores_modes_even_after_a_failure(training, monkeypatch):
    model, tokenizer = make_policy()
    model.train(training)

    def broken(*arguments, **keywords):
        assert not model.training and model.config._attn_implementation == "grpo_lab_one_query"
        raise RuntimeError("no luck")

    monkeypatch.setattr(decoder_module, "functional_call", broken)
    with pytest.raises(RuntimeError, match="no luck"):
        sample(model, tokenizer)
    assert model.training is training and model.config._attn_implementation == "sdpa"


def test_a_long_completion_in_float64_equals_single_forward_passes():
    """In float64, a wrong column of the cache shows: its error is larger than rounding."""
    model, tokenizer = make_policy(scale=0.05)
    make_exact(model)
    model.generation_config.eos_token_id = None
    rollout = sample(model, tokenizer, length=66, generations=8)
    assert rollout.mask.sum(-1).max() > 60 and rollout.completion_ids.shape[1] + rollout.prompt_ids.shape[1] > 64
    logp, _ = logprobs_of(model, rollout)
    assert (logp - rollout.logp)[rollout.mask].abs().max() < 1e-6
