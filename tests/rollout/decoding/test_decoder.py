"""Our decoders draw the tokens of `generate` and record the recomputed log-probabilities; the draw with one number."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab import logprobs
from grpo_lab.base.checks import RunError
from grpo_lab.rollout.decoding import decoder as decoder_module
from grpo_lab.rollout.decoding.cache import InPlaceCache, PreallocatedCache, autocast_copies, order_keeping_parents
from grpo_lab.rollout.decoding.decoder import CpuDecoder, Prefixes, inverse_cdf
from grpo_lab.rollout.decoding.graph_decoder import exponential_race
from grpo_lab.rollout.decoding.sampling_request import entropy_of
from grpo_lab.rollout.sample import DECODERS
from tests.support.few_fast import few_fast
from tests.support.resuming import real_run
from tests.support.sampling import PROMPTS, SETTINGS, assert_same_rollouts, logprobs_of, sample
from tests.support.small_policy import make_exact, make_policy, same_weights, weights

MODULES = {
    "LARGE_VOCABULARY": (logprobs, decoder_module),
    "VOCABULARY_BLOCK": (logprobs,),
    "SEARCH_BLOCK": (decoder_module,),
}


def sample_by_both(model, tokenizer, *arguments, **settings):
    """Sample by `generate` and by the CPU decoder with one seed; return both rollouts and both random states after.

    The decoder draws by the exponential race here, as `generate` does.
    """
    rollouts, states = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDecoder, "draw_from", draw_by_race)
        for cache in ("dynamic", None):
            rollouts.append(sample(model, tokenizer, *arguments, cache_implementation=cache, **settings))
            states.append(torch.get_rng_state())
    return rollouts, states


def draw_by_race(decoder, log_pi, pi):
    noise = log_pi.new_empty(len(decoder.sequences), log_pi.shape[1]).exponential_()
    rows = decoder.active_rows
    return exponential_race(log_pi[rows.prefix_of_row], noise[rows.row_index])


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

    steps, step = [], CpuDecoder.draw_next_tokens
    monkeypatch.setattr(CpuDecoder, "draw_next_tokens", lambda decoder: (steps.append(1), step(decoder)))
    with Counts():
        sample(model, tokenizer)
    assert sum(is_over_vocabulary) == len(steps) > 0


def one_prefix_per_row(decoder):
    """Stands in for `regroup_rows`: each row keeps a prefix of its own until all rows have ended."""
    rows, prefixes = decoder.active_rows, decoder.prefixes
    position, readable_columns = prefixes.position, prefixes.readable_columns
    if len(position) < len(rows.row_index):
        position, readable_columns = position[rows.prefix_of_row], readable_columns[rows.prefix_of_row]
        decoder.cache.continue_prefixes(rows.prefix_of_row)
    last_token = decoder.sequences[:, decoder.write_column]
    decoder.active_rows = replace(rows, prefix_of_row=rows.row_index)
    decoder.prefixes = Prefixes(rows.row_index, last_token, position, readable_columns)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_shared_prefixes_are_read_once_and_change_no_completion(settings, monkeypatch):
    model, tokenizer = make_policy()
    read, step = [], CpuDecoder.draw_next_tokens
    monkeypatch.setattr(
        CpuDecoder, "draw_next_tokens", lambda decoder: (read.append(len(decoder.prefixes.position)), step(decoder))
    )
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


@pytest.fixture
def as_large(monkeypatch):
    """Lower the limits, so that the small model of the tests is computed as a large one."""
    for (name, modules), value in zip(MODULES.items(), (4, 5, 3), strict=True):
        for module in modules:
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(decoder_module, "LARGE_PREFIX_BYTES", 0)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_decoding_as_for_a_large_model_draws_the_same_completions_and_logprobs(settings, request):
    model, tokenizer = make_policy()
    small = sample(model, tokenizer, length=12, **settings)
    request.getfixturevalue("as_large")
    calls, continue_prefixes = [], PreallocatedCache.continue_prefixes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            PreallocatedCache, "continue_prefixes", lambda *arguments: (calls.append(1), continue_prefixes(*arguments))
        )
        large = sample(model, tokenizer, length=12, **settings)
    assert calls and torch.equal(small.completion_ids, large.completion_ids) and small.texts == large.texts
    assert torch.equal(small.mask, large.mask)
    torch.testing.assert_close(large.logp, small.logp, rtol=0, atol=1e-5)
    torch.testing.assert_close(large.entropy, small.entropy, rtol=0, atol=1e-5)
    if settings.keys() <= {"temperature"}:
        logp = logprobs_of(model, large, **settings)[0]
        assert (logp - large.logp)[large.mask].abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("as_large")
def test_a_large_run_is_resumed_to_the_bit(tmp_path):
    settings = {"max_steps": 3, "save_steps": 1}
    _, through, _ = real_run(tmp_path / "through", **settings)
    real_run(tmp_path / "stopped", **settings | {"max_steps": 1})
    _, resumed, _ = real_run(tmp_path / "stopped", resume=True, **settings)
    assert same_weights(weights(through), weights(resumed))


@pytest.mark.parametrize("vocabulary", [4097, 5120, 9000])
def test_a_head_in_blocks_is_the_product_in_float32_alone(vocabulary, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    h, weight = (torch.randn(size, 24, generator=generator, dtype=torch.float64) for size in (9, vocabulary))
    torch.testing.assert_close(
        logprobs.head_logits(h.float(), weight.float()).double(), h @ weight.T, rtol=1e-5, atol=2e-5
    )
    monkeypatch.setattr(torch, "mm", None)
    assert torch.equal(logprobs.head_logits(h, weight), h @ weight.T)
    few = weight[:4096].float()
    assert torch.equal(logprobs.head_logits(h.float(), few), h.float() @ few.T)


@pytest.mark.parametrize("vocabulary", [4097, 6000, 8192])
def test_a_search_in_blocks_draws_what_one_search_draws(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 4 * torch.randn(6, vocabulary, generator=generator)
    logits[:, ::3] = -torch.inf  # an excluded token is never drawn
    pi = logits.softmax(-1)
    distribution = torch.arange(3000) % 6
    u = torch.rand(3000, dtype=torch.float64, generator=generator)
    u[:12] = torch.tensor([0.0, 1 - 2**-53]).repeat_interleave(6)
    token = inverse_cdf(pi, u, distribution)
    cdf = pi.double().cumsum(-1)
    cdf = (cdf / cdf[:, -1:])[distribution]
    above = cdf.gather(1, token[:, None])[:, 0]
    below = above - pi.double()[distribution, token]
    assert (pi[distribution, token] > 0).all()
    assert (below <= u + 1e-6).all() and (u - 1e-6 <= above).all()
    assert (token == (cdf <= u[:, None]).sum(-1)).double().mean() > 0.99


def test_a_rare_token_of_a_large_vocabulary_comes_as_often_as_its_probability():
    pi = torch.zeros(1, 8192, dtype=torch.float64)
    pi[0, [5, 7, 8000]] = torch.tensor([1 - 2**-29, 2**-30, 2**-30], dtype=torch.float64)
    u = torch.tensor([0, 1 - 2**-29 - 2**-40, 1 - 2**-29 + 2**-40, 1 - 2**-30 + 2**-40], dtype=torch.float64)
    assert inverse_cdf(pi, u, torch.zeros(4, dtype=torch.long)).tolist() == [5, 5, 7, 8000]


@given(st.integers(1, 9), st.data())
def test_preallocated_prefixes_keep_their_place_and_are_not_read_after_being_written(before, data):
    parent = torch.tensor(sorted(data.draw(st.lists(st.integers(0, before - 1), min_size=1, max_size=12))))
    order = order_keeping_parents(parent)
    placed = parent[order]
    assert order.sort().values.tolist() == list(range(len(parent)))
    moved = placed != torch.arange(len(placed))
    assert all(index in placed[~moved].tolist() for index in set(parent.tolist()) if index < len(parent))
    assert not set(placed[moved].tolist()) & set(moved.nonzero()[:, 0].tolist())


def test_a_preallocated_cache_equals_a_copied_one_in_planned_memory():
    model, _ = make_policy()
    write_column = torch.zeros(1, dtype=torch.long)
    preallocated, copied = PreallocatedCache(model, 3, 12, 8, write_column), InPlaceCache(model, 3, 8, write_column)
    planned = 2 * model.config.num_hidden_layers * 12 * copied.keys[0][0].nbytes
    assert sum(memory.nbytes for tensors in preallocated._memory for memory in tensors) == planned
    generator = torch.Generator().manual_seed(0)
    num_prefixes = 3
    for column in range(8):
        preallocated.num_read_columns = copied.num_read_columns = column + 1
        write_column.fill_(column)
        shape = (num_prefixes, *copied.keys[0].shape[1:2], 1, copied.keys[0].shape[3])
        for layer in range(model.config.num_hidden_layers):
            new = torch.randn(2, *shape, generator=generator)
            for ours, theirs in zip(preallocated.update(*new, layer), copied.update(*new, layer), strict=True):
                assert torch.equal(ours, theirs)
        num_children = max(1, min(12, num_prefixes + column - 2))
        parent = torch.randint(num_prefixes, (num_children,), generator=generator).sort().values
        selected = parent[order_keeping_parents(parent)]
        num_prefixes = len(selected)
        preallocated.continue_prefixes(selected)
        copied.continue_prefixes(selected)


@given(st.lists(st.floats(-60, 0) | st.just(-torch.inf), min_size=1, max_size=6), st.floats(0, 1, exclude_max=True))
def test_inverse_cdf_picks_the_first_token_above_u(logits, u):
    if max(logits) == -torch.inf:
        logits[0] = 0.0
    log_pi = torch.tensor([logits]).log_softmax(-1)
    certain = torch.full_like(log_pi, -torch.inf).index_fill_(1, torch.tensor(len(logits) - 1), 0)
    distribution_index = torch.tensor([1, 0, 2])
    three_u = torch.full((3,), u, dtype=torch.float64)
    last, token, _ = inverse_cdf(torch.cat([log_pi, certain, log_pi]).exp(), three_u, distribution_index)
    assert last == len(logits) - 1, "each row from its own"
    pi = log_pi[0].exp().double()
    assert pi[token] > 0, "what cannot come does not"
    assert pi[:token].sum() <= u * pi.sum() + 1e-12 and pi[: token + 1].sum() > u * pi.sum() - 1e-12


def test_a_rare_token_comes_as_often_as_its_probability():
    """A probability of 2^-30 is smaller than the steps of a random float32."""
    log_pi = torch.tensor([[1 - 2**-30, 2**-30]], dtype=torch.float64).log()
    near = torch.tensor([1 - 2**-30 - 2**-40, 1 - 2**-30 + 2**-40], dtype=torch.float64)
    assert inverse_cdf(log_pi.exp(), near, torch.zeros(2, dtype=torch.long)).tolist() == [0, 1]
