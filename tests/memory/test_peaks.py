"""The plan of each phase of a step is compared with the peak of its live tensors, on any CPU.

The tensors of a GPU are those of a CPU, except where code chooses by device. `like_a_gpu` makes the choices of a GPU.
"""

from itertools import product

import pytest
import torch

from grpo_lab.config.precision import PRECISIONS
from grpo_lab.config.settings import SamplingParams
from grpo_lab.memory import phases
from grpo_lab.memory.phases import resident_bytes
from grpo_lab.models import shapes
from grpo_lab.rollout.decoding import graph_decoder
from grpo_lab.rollout.decoding.decoder import DecoderSpec
from grpo_lab.rollout.decoding.graph_decoder import GraphDecoder
from grpo_lab.rollout.decoding.sampling_request import SamplingRequest
from grpo_lab.rollout.forward import model_logprobs, packing
from grpo_lab.rollout.forward.packing import packed_prompts
from grpo_lab.rollout.rollout import EncodedPrompts
from grpo_lab.trainer import PolicyOptimizer
from tests.support.allocations import peak_on_cpu
from tests.support.fake_device import fake_gpu, fake_qwen2
from tests.support.known_shape import random_policy
from tests.support.peak import LiveStorages, peak_of_live_tensors
from tests.support.planned_steps import (
    UNTIED,
    config_of_sizes,
    plan_step,
    planned_bytes,
    rollout_of,
    update_and_logprobs,
)


@pytest.fixture(autouse=True)
def untied(monkeypatch):
    monkeypatch.setitem(shapes.SHAPES, "untied", UNTIED)


def like_a_gpu(monkeypatch):
    """Take the large chunks of logits that a GPU takes."""
    chunk = model_logprobs.head_chunk_tokens
    monkeypatch.setattr(model_logprobs, "head_chunk_tokens", lambda *sizes: chunk(*sizes[:-1], "cuda"))


def mostly_slow(cases, quick):
    """Mark all cases as slow but those at the positions `quick`, so that only `make test-all` runs the whole list."""
    return [case if n in quick else pytest.param(*case, marks=pytest.mark.slow) for n, case in enumerate(cases)]


@pytest.mark.parametrize(
    ("precision", "T", "B"),
    mostly_slow(
        [
            *product(("fp32", "bf16"), (16,), (8, 32)),
            *product(("fp32-master", "bf16-naive", "fp16"), (12,), (32,)),
        ],
        quick=(0, 2),
    ),
)
def test_planned_peak_of_a_rollout(precision, T, B):
    rollout, config, L = rollout_of(precision, T, B)
    assert planned_bytes(plan_step("small", precision, config, L), "rollout") == pytest.approx(
        peak_of_live_tensors(rollout), rel=0.1
    )


@pytest.mark.parametrize(
    ("precision", "L"),
    mostly_slow([*product(("bf16", "fp32-master", "fp32"), (257, 513, 1025))], quick=(1, 3)),
)
def test_planned_peak_of_a_rollout_with_long_prompts(precision, L):
    """The mask grows with the square of the prompts' length, and with the query heads that share a key head."""
    model, ids = random_policy("small", dtype=PRECISIONS[precision].weights), torch.arange(2 * (L - 1)).view(2, -1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, PRECISIONS[precision].autocast is not None):
        counted = peak_of_live_tensors(lambda: packed_prompts(model, EncodedPrompts(ids, ids >= 0)))
    memory_plan = plan_step("small", precision, config_of_sizes(T=16, G=4, B=8), L)
    prompts = sum(memory_plan.snapshots["rollout"][0].values()) - sum(resident_bytes(memory_plan.sizes).values())
    assert prompts == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(
    ("precision", "length"), mostly_slow([*product(("bf16", "fp32-master", "fp32"), (96, 384))], quick=(0,))
)
def test_planned_peak_of_rows_without_a_mask(precision, length, monkeypatch):
    """The plan of the prompts and of an update equals the peak of live tensors, and no mask is planned."""
    for module in (packing, phases):
        monkeypatch.setattr(module, "LONGEST_MASKED", 32)
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 2**18)
    model, ids = random_policy("small", dtype=PRECISIONS[precision].weights), torch.arange(2 * length).view(2, -1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, PRECISIONS[precision].autocast is not None):
        counted = peak_of_live_tensors(lambda: packed_prompts(model, EncodedPrompts(ids, ids >= 0)))
    config = config_of_sizes(T=length, G=4, B=4, b=4)
    memory_plan = plan_step("small", precision, config_of_sizes(T=16, G=4, B=8), length + 1)
    assert phases.prefill_mask_bytes(memory_plan.sizes) == 0
    assert phases.mask_bytes(memory_plan.with_changes(config=config).sizes) == 0
    prompts = sum(memory_plan.snapshots["rollout"][0].values()) - sum(resident_bytes(memory_plan.sizes).values())
    assert prompts == pytest.approx(counted, rel=0.1)
    update, _ = update_and_logprobs("small", precision, config, L=48)
    memory_plan = plan_step("small", precision, config, L=48)
    assert planned_bytes(memory_plan, "update") == pytest.approx(peak_of_live_tensors(update), rel=0.1)


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp32", marks=pytest.mark.slow)])
def test_planned_peak_of_decoding_on_a_fake_gpu(precision, monkeypatch):
    """A step that is not captured needs four tensors of the size of the logits; a graph reserves six."""
    monkeypatch.setattr(graph_decoder, "_capture", lambda step, device: step)
    config = config_of_sizes(T=500, G=8, B=64, b=8)
    with fake_gpu():
        model = fake_qwen2(PRECISIONS[precision].weights)
        with LiveStorages() as live_storages:
            sampling = SamplingParams(8, 512)
            decoder = GraphDecoder(model, DecoderSpec(8, 768, sampling, (151643, 151645), 151643))
            prompts = EncodedPrompts(*(torch.zeros(8, 200, dtype=kind) for kind in (torch.long, torch.bool)))
            decoder.load_request(SamplingRequest(prompts, sampling, (151643, 151645), 151643), None)
            decoder.draw_next_tokens()
    rollout = plan_step("qwen2", precision, config, L=200, device_type="cuda").phases["rollout"]
    of_graph = 4 * 64 * 151_936 * (phases.CAPTURED_LOGITS - phases.SAMPLING_TENSORS)
    assert rollout["KV cache"] + rollout["sampling"] - of_graph == pytest.approx(live_storages.peak, rel=0.1)


WHOLE, ONE_PROMPT = {"T": 24, "b": 8, "L": 8}, {"T": 40, "b": 4, "G": 8, "L": 24}
SINGLE_ROWS = {"T": 96, "B": 4, "b": 1, "L": 16}
# Device, shape, precision, gradient checkpointing, and the sizes of the update.
UPDATES = [
    ("cpu", "small", "fp32", False, WHOLE),
    ("cpu", "untied", "fp32", True, ONE_PROMPT),
    ("cuda", "small", "fp32", True, SINGLE_ROWS),
    ("cpu", "untied", "fp32-master", False, ONE_PROMPT),
    ("cuda", "small", "fp32-master", False, SINGLE_ROWS),
    ("cuda", "untied", "fp32-master", True, WHOLE),
    ("cpu", "small", "bf16", False, SINGLE_ROWS),
    ("cpu", "untied", "bf16", True, WHOLE),
    ("cuda", "small", "bf16", True, ONE_PROMPT),
    ("cuda", "untied", "bf16-naive", True, WHOLE),
    ("cuda", "small", "fp16", False, WHOLE),
    ("cuda", "untied", "fp16", True, ONE_PROMPT),
]
QUICK = (3, 8)  # half precision, with and without checkpointing, both shapes


@pytest.mark.parametrize(
    ("device", "shape", "precision", "checkpointing", "sizes"), mostly_slow(UPDATES, QUICK), ids=str
)
def test_planned_peaks_of_an_update_and_of_logprobs(device, shape, precision, checkpointing, sizes, monkeypatch):
    """With small chunks of logits, layers and gradients determine the peak; in the next test the logits do."""
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 2**18)
    sizes = dict(sizes)
    L = sizes.pop("L")
    config = config_of_sizes(gradient_checkpointing=checkpointing, num_iterations=2, **sizes)
    check_update_and_logprobs(device, shape, precision, config, L, monkeypatch)


@pytest.mark.parametrize(
    ("device", "precision"),
    mostly_slow([("cpu", "fp32"), ("cpu", "bf16"), ("cpu", "fp32-master"), ("cuda", "bf16")], quick=(0,)),
)
@pytest.mark.parametrize("at_once", [2**20, pytest.param(2**25, marks=pytest.mark.slow)])
def test_planned_peak_of_an_update_dominated_by_logits(device, precision, at_once, monkeypatch):
    """The logits are made in chunks of 64 tokens (96 on a GPU), or all at once."""
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", at_once)
    config = config_of_sizes(T=70, G=8, b=8, gradient_checkpointing=True, num_iterations=2)
    check_update_and_logprobs(device, "small", precision, config, 8, monkeypatch)


@pytest.mark.parametrize("precision", ["fp32", "bf16-naive"])
def test_planned_peak_of_an_update_of_one_micro_batch_dominated_by_the_embedding(precision, monkeypatch):
    """At the end, two gradients of a tied embedding are alive but no sum, as one is added to the other in place."""
    monkeypatch.setitem(shapes.SHAPES, "wide", shapes.SHAPES["small"] | {"vocab_size": 20_000})
    config = config_of_sizes(T=4, G=2, B=2, b=2)
    update, _ = update_and_logprobs("wide", precision, config, 4)
    assert planned_bytes(plan_step("wide", precision, config, 4), "update") == pytest.approx(
        peak_of_live_tensors(update), rel=0.02
    )


@pytest.mark.parametrize("T", [4, 32])
def test_the_two_gradients_of_a_tied_embedding_are_added_in_place(T, monkeypatch):
    """The peak counts every allocation of torch; the logits are made all at once, or in chunks."""
    monkeypatch.setitem(shapes.SHAPES, "wide", shapes.SHAPES["small"] | {"vocab_size": 20_000})
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 2**18)
    config = config_of_sizes(T=T, G=2, B=2, b=2)
    update, _ = update_and_logprobs("wide", "fp32", config, 4)
    update()
    assert planned_bytes(plan_step("wide", "fp32", config, 4), "update") == pytest.approx(peak_on_cpu(update), rel=0.1)


def check_update_and_logprobs(device, shape, precision, config, L, monkeypatch):
    if device == "cuda":
        like_a_gpu(monkeypatch)
    update, logprobs = update_and_logprobs(shape, precision, config, L)
    memory_plan = plan_step(shape, precision, config, L, device)
    assert planned_bytes(memory_plan, "update") == pytest.approx(peak_of_live_tensors(update), rel=0.1)
    assert planned_bytes(memory_plan, "logprobs") == pytest.approx(peak_of_live_tensors(logprobs), rel=0.1)


@pytest.mark.parametrize(("precision",), mostly_slow([(precision,) for precision in PRECISIONS], quick=(0,)))
def test_planned_peak_of_an_optimizer_step(precision):
    """The 8-bit optimizer makes tensors that no operation returns; as it works elementwise, a CPU needs the same."""
    model = random_policy("small", dtype=PRECISIONS[precision].weights)
    optimizer = PolicyOptimizer(model, config_of_sizes(precision=precision))

    def step():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step(1e-3, loss=0.0)

    step()
    peak = (peak_on_cpu if precision == "bf16" else peak_of_live_tensors)(step)
    assert planned_bytes(plan_step("small", precision, config_of_sizes()), "optimizer") == pytest.approx(peak, rel=0.02)
