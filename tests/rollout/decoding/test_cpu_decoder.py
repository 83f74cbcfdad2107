"""Drawing with one random number per row; and a large model, in blocks and with prefixes that keep their place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab import logprobs
from grpo_lab.rollout.decoding import cpu_decoder
from grpo_lab.rollout.decoding.cache import InPlaceCache, PreallocatedCache, order_keeping_parents
from grpo_lab.rollout.decoding.cpu_decoder import inverse_cdf
from tests.support.resuming import real_run
from tests.support.sampling import SETTINGS, logprobs_of, sample
from tests.support.small_policy import make_policy, same_weights, weights

MODULES = {"LARGE_VOCABULARY": (logprobs, cpu_decoder), "VOCABULARY_BLOCK": (logprobs,), "SEARCH_BLOCK": (cpu_decoder,)}


@pytest.fixture
def as_large(monkeypatch):
    """Lower the limits, so that the small model of the tests is computed as a large one."""
    for (name, modules), value in zip(MODULES.items(), (4, 5, 3), strict=True):
        for module in modules:
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(cpu_decoder, "LARGE_PREFIX_BYTES", 0)


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
