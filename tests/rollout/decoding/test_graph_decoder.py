"""The conditions for capturing the decoding step as a CUDA graph, and for a rollout in parts, checked without a GPU.

The step is recorded and repeated on the CPU (support/fake_cuda_graph.py), and run on a
fake GPU (support/fake_device.py).
"""

import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.decoding import graph_decoder
from grpo_lab.rollout.decoding.cache import InPlaceCache
from grpo_lab.rollout.decoding.decoder import DecoderSpec
from grpo_lab.rollout.decoding.graph_decoder import (
    DecoderSlot,
    GraphDecoder,
    exponential_race,
    fewest_parts,
    fixed_columns,
    free_gpu_bytes,
    parts_that_fit,
)
from grpo_lab.rollout.decoding.sampling_request import SamplingRequest
from grpo_lab.rollout.forward.packing import packed_prompts
from grpo_lab.rollout.rollout import EncodedPrompts
from grpo_lab.trainer import train
from tests.support.fake_cuda_graph import Tape, address, capture_on_the_cpu, refuse_synchronization, without_capture
from tests.support.fake_device import fake_gpu, fake_qwen2
from tests.support.peak import tensors
from tests.support.sampling import PROMPTS, SETTINGS, assert_same_rollouts, sample
from tests.support.small_policy import (
    ROWS,
    letter_reward,
    make_config,
    make_policy,
    same_weights,
    weights,
    without_times,
)

PLAIN_AND_ALL = [SETTINGS[0], SETTINGS[-1]]


@pytest.fixture
def tapes(monkeypatch):
    return capture_on_the_cpu(monkeypatch)


@pytest.mark.parametrize("settings", PLAIN_AND_ALL, ids=str)
def test_a_captured_step_samples_like_generate(settings, tapes):
    policy = make_policy(pad_is_end=True)
    expected = sample(*policy, cache_implementation="dynamic", **settings)
    assert_same_rollouts(expected, sample(*policy, **settings))
    assert len(tapes) == 1


@pytest.mark.parametrize(("length", "every"), [(6, 4), (8, 4), (3, 16), (33, 16), (1, 1)])
def test_steps_between_two_checks_for_the_end_change_no_completion(length, every, tapes, monkeypatch):
    monkeypatch.setattr(graph_decoder, "STEPS_PER_CHECK", every)
    policy, steps = make_policy(), []
    assert_same_rollouts(sample(*policy, length=length, cache_implementation="dynamic"), sample(*policy, length=length))
    model, tokenizer = policy
    model.generation_config.eos_token_id = list(range(len(tokenizer)))
    replay = Tape.replay
    monkeypatch.setattr(Tape, "replay", lambda tape: steps.append(1) or replay(tape))
    all_end_at_once = sample(*policy, length=length)
    assert all_end_at_once.completion_ids.shape[1] == 1
    assert len(steps) == min(every, length), "rows that have ended go on until somebody asks"


def loaded(model, settings, prompts=2, length=3, device="cpu"):
    sampling_params = SamplingParams(2, 8, **settings)
    decoder = GraphDecoder(model, DecoderSpec(prompts, 64, sampling_params, (3, 4), 3))
    ids = torch.ones(prompts, length, dtype=torch.long, device=device)
    request = SamplingRequest(EncodedPrompts(ids, ids > 0), sampling_params, (3, 4), 3)
    decoder.load_request(request, packed_prompts(model, EncodedPrompts(ids[:, :-1], ids[:, :-1] > 0)))
    return decoder


def own_tensors(decoder):
    """Return the tensors of a decoder, without those of its model."""
    owners = (decoder, decoder.active_rows, decoder.prefixes, decoder.cache)
    return tensors([value for owner in owners for name, value in vars(owner).items() if name != "model"])


@pytest.mark.parametrize("settings", PLAIN_AND_ALL, ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_a_captured_step_reads_only_its_own_memory_and_the_weights(settings, autocast, monkeypatch):
    without_capture(monkeypatch)
    model, _ = make_policy()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        decoder = loaded(model, settings)
        with Tape() as tape:
            decoder.draw_next_tokens()
    own = own_tensors(decoder)
    rounded = set(decoder.autocast_weights)
    weights = [p for name, p in model.named_parameters(remove_duplicate=False) if name not in rounded]
    known = {address(tensor): tensor for tensor in [*own, *weights, *model.buffers()]}
    strange = [tensor for pointer, tensor in tape.read_tensors.items() if pointer not in known and tensor.dim() > 0]
    assert not strange, f"read from elsewhere: {[(t.shape, t.dtype) for t in strange]}"
    unread = [tensor for pointer, tensor in known.items() if pointer not in tape.read_tensors]
    assert len(unread) == 1 and unread[0] is model.model.rotary_emb.original_inv_freq, "the rest is used"


@pytest.mark.parametrize("settings", [{}, pytest.param({"bf16": True}, marks=pytest.mark.slow)], ids=str)
def test_a_run_captures_twice_however_many_steps_it_has_and_draws_the_same(settings, tapes, monkeypatch):
    """The graph of the first step is dropped, that of the second one is kept, also for an evaluation of its sizes."""

    def run():
        model, tokenizer = make_policy()
        config = make_config(max_steps=4, eval_steps=2, **settings)
        history = train(model, tokenizer, ROWS, letter_reward, config, eval_dataset=ROWS)
        return weights(model), without_times(history)

    monkeypatch.setattr(graph_decoder, "has_room", lambda device, size: False)
    expected, _ = run(), tapes.clear()
    monkeypatch.setattr(graph_decoder, "has_room", lambda device, size: size > 0)
    (got, history), captures = run(), len(tapes)
    assert same_weights(got, expected[0]) and history == expected[1]
    assert captures == 2


def test_a_kept_graph_is_reused_only_for_the_same_sizes_and_weights(tapes, monkeypatch):
    monkeypatch.setattr(graph_decoder, "has_room", lambda device, size: True)
    model, tokenizer = make_policy()
    with graph_decoder.shared_decoder():
        for _ in range(3):
            first = sample(model, tokenizer)
        assert len(tapes) == 2
        sample(model, tokenizer, temperature=0.5)
        sample(model, tokenizer, generations=3)
        assert len(tapes) == 4
        again = sample(model, tokenizer, generations=3)
        model.lm_head.weight.data = model.lm_head.weight.data.clone()
        assert_same_rollouts(again, sample(model, tokenizer, generations=3), 1e-12)
        assert len(tapes) == 5
    assert not graph_decoder._decoder_slots
    assert_same_rollouts(first, sample(model, tokenizer), 1e-12)


def test_parts_of_a_rollout_share_a_capture_and_draw_the_same(tapes, monkeypatch):
    monkeypatch.setattr(graph_decoder, "has_room", lambda device, size: True)
    model, tokenizer = make_policy()
    whole = sample(model, tokenizer, PROMPTS[:4])
    monkeypatch.setattr("grpo_lab.rollout.sample.parts_that_fit", lambda *sizes: 4)
    tapes.clear()
    captures = []
    with graph_decoder.shared_decoder():
        for _ in range(3):
            assert_same_rollouts(whole, sample(model, tokenizer, PROMPTS[:4]))
            captures.append(len(tapes))
    assert captures == [1, 2, 2], "dropped after the first rollout, not after the first part"


def test_the_memory_of_a_part_includes_the_random_numbers_of_all_rows(monkeypatch):
    without_capture(monkeypatch)
    model, _ = make_policy()
    sampling = SamplingParams(2, 8)
    whole, part = (GraphDecoder(model, DecoderSpec(2, 64, sampling, (3, 4), 3, rows)).nbytes for rows in (None, 12))
    assert part - whole == 4 * 12 * model.config.vocab_size


def test_a_dropped_decoder_is_freed_at_once(tapes, monkeypatch):
    """Otherwise its memory would still be in use when `drop` returns the memory of the graph to the GPU."""
    are_alive, drop = [], DecoderSlot.drop

    def drop_and_look(slot):
        decoder = None if slot.decoder is None else weakref.ref(slot.decoder)
        drop(slot)
        are_alive.append(decoder is not None and decoder() is not None)

    monkeypatch.setattr(DecoderSlot, "drop", drop_and_look)
    monkeypatch.setattr(graph_decoder, "has_room", lambda device, size: False)
    policy = make_policy()
    with graph_decoder.shared_decoder():
        for _ in range(2):
            sample(*policy)
    assert len(tapes) == 2 and not any(are_alive)


class OnTheGPU(TorchDispatchMode):
    """Fails if a tensor of an operation is not on the GPU, or if an operation needs a value on the host."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        refuse_synchronization(function, arguments)
        for tensor in tensors((arguments, keywords, result)):
            assert tensor.device.type == "cuda", f"{function} touches {tensor.shape} on {tensor.device}"
        return result


def step_on_a_fake_gpu(dtype, settings, monkeypatch, rows=64, capacity=768):
    monkeypatch.setattr(graph_decoder, "_capture", lambda step, device: step)
    with fake_gpu():
        model = fake_qwen2(dtype, layers=2)
        sampling = SamplingParams(rows // 8, 512, **settings)
        decoder = GraphDecoder(model, DecoderSpec(8, capacity, sampling, (151643, 151645), 151643))
        ids = torch.zeros(8, 200, dtype=torch.long)
        decoder.load_request(SamplingRequest(EncodedPrompts(ids, ids == 0), sampling, (151643, 151645), 151643), None)
        with OnTheGPU():
            decoder.draw_next_tokens()
    return decoder


@pytest.mark.parametrize(("dtype", "settings"), [*zip((torch.bfloat16, torch.float32), PLAIN_AND_ALL, strict=True)])
def test_a_step_of_two_layers_of_qwen2_stays_on_the_gpu(dtype, settings, monkeypatch):
    decoder = step_on_a_fake_gpu(dtype, settings, monkeypatch)
    assert decoder.cache.keys[1].shape == (64, 2, 768, 64) and decoder.cache.keys[1].dtype == dtype
    assert decoder.logp.dtype == decoder.entropy.dtype == torch.float32
    assert {tensor.device.type for tensor in own_tensors(decoder)} == {"cuda"}


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(1e-6, 30)), min_size=1, max_size=6))
def test_exponential_race_is_the_gumbel_maximum(pairs):
    log_pi, noise = torch.tensor(pairs, dtype=torch.float64)[None].unbind(-1)
    times = [noise[0, v].item() / log_pi[0, v].exp().item() for v in range(len(pairs))]
    winner = exponential_race(log_pi, noise).item()
    assert times[winner] <= min(times) * (1 + 1e-12)
    gumbel = log_pi - noise.log()
    assert gumbel[0, winner] >= gumbel.max() - 1e-9


def test_fixed_columns_are_a_multiple_of_64():
    assert fixed_columns(256, 512) == 768 and fixed_columns(256, 513) == fixed_columns(300, 532) == 832


def test_a_rollout_is_cut_no_finer_than_it_has_to_be():
    assert fewest_parts(8, 4, row_bytes=10, noise_bytes=1, free_bytes=320) == 1
    assert fewest_parts(8, 4, row_bytes=10, noise_bytes=1, free_bytes=319) == 2
    assert fewest_parts(8, 4, row_bytes=10, noise_bytes=1, free_bytes=191) == 4
    assert fewest_parts(6, 4, row_bytes=10, noise_bytes=1, free_bytes=110) == 3
    assert fewest_parts(8, 4, row_bytes=10, noise_bytes=1, free_bytes=0) == 8, "what is left is to try"


def test_the_parts_that_fit_follow_from_cache_and_logits_of_the_rows():
    model, _ = make_policy()
    config, columns = model.config, 64
    cache_bytes = 4 * InPlaceCache(model, 1, columns, torch.zeros(1, dtype=torch.long)).keys[0].numel()
    row_bytes = 2 * config.num_hidden_layers * cache_bytes + 4 * 6 * config.vocab_size
    assert parts_that_fit(model, 8, 4, columns, 32 * row_bytes) == 1
    assert parts_that_fit(model, 8, 4, columns, 32 * row_bytes - 1) == 2
    assert free_gpu_bytes(torch.device("cpu")) == math.inf and parts_that_fit(model, 8, 4, columns, math.inf) == 1
