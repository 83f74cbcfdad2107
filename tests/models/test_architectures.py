"""Every architecture is sampled and scored with the model's own probabilities, or refused with a clear error.

The oracle is the model's own forward pass over each whole row by itself, without padding and without a cache. The
results are listed in grpo_lab/models/ARCHITECTURES.md.
"""

from pathlib import Path

import pytest
import torch

from grpo_lab.config.settings import SamplingParams
from grpo_lab.models import selfcheck
from grpo_lab.models.selfcheck import disable_dropout, ensure_checked
from grpo_lab.rollout.decoding.decoder import DecoderSpec
from grpo_lab.rollout.decoding.graph_decoder import GraphDecoder
from grpo_lab.rollout.decoding.sampling_request import SamplingRequest
from grpo_lab.rollout.forward.packing import packed_prompts
from grpo_lab.rollout.model import FAST_FAMILIES, has_fast_path
from grpo_lab.rollout.rollout import EncodedPrompts
from tests.support.architectures import ARCHITECTURES, WINDOW, make_architecture
from tests.support.fake_cuda_graph import Tape, without_capture
from tests.support.sampling import logprobs_of, sample, tokens_of

PROMPTS = [
    [{"role": "user", "content": "1+1=?0123"}],
    "abc?+ef0",
    "d",
]  # different lengths, two of which exceed a window of 6
T, G = 5, 3
QUICK = ("qwen2 (windows)", "llama", "gemma2", "granite", "gpt2", "opt", "mamba", "rwkv")
REFUSED = {"recurrent_gemma", "minimax", "rwkv", "xlnet"}


def mostly_slow(names, quick=QUICK):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in sorted(names)]


def own_logp(model, rollout):
    """Return the log-probabilities of the tokens under the mask, from each row by itself, with a softmax in float64."""
    logps = []
    for b in range(len(rollout.mask)):
        prompt, completion = tokens_of(rollout, b)
        logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0].double()
        logps += [logits[len(prompt) - 1 + t].log_softmax(-1)[token] for t, token in enumerate(completion)]
    return torch.stack(logps)


@torch.no_grad()
def distance_to_own_forward(model, rollout, logp):
    """Return the largest difference of a token from the model's own log-probabilities."""
    return (logp[rollout.mask] - own_logp(model, rollout)).abs().max().item()


@pytest.mark.parametrize("name", mostly_slow(set(ARCHITECTURES) - REFUSED))
def test_accepted_architectures_sample_and_score_alike(name):
    model, tokenizer = make_architecture(name)
    ensure_checked(model)
    for cache in ("dynamic", None) if has_fast_path(model) else ("dynamic",):
        rollout = sample(model, tokenizer, PROMPTS, length=T, generations=G, cache_implementation=cache)
        assert rollout.completion_ids.shape[1] > 1 and rollout.prompt_ids.shape[1] > WINDOW
        assert distance_to_own_forward(model, rollout, rollout.logp) < 1e-4
    logp, _ = logprobs_of(model, rollout)
    assert distance_to_own_forward(model, rollout, logp) < 1e-4 and logp.isfinite().all()
    disable_dropout(model)
    model.gradient_checkpointing_enable()
    logp = logprobs_of(model.train(), rollout)[0]
    assert distance_to_own_forward(model.eval(), rollout, logp) < 1e-4


@pytest.mark.parametrize("name", mostly_slow(REFUSED))
def test_refused_architectures_differ_by_the_reported_amount(name):
    model, tokenizer = make_architecture(name)
    message = r"model is a \w+ \(\w+\), which cannot be trained here: "
    message += r".* differ by [\d.]+ nats a token \(at most 0.001\)"
    with pytest.raises(ValueError, match=message):
        ensure_checked(model)
    rollout = sample(model, tokenizer, PROMPTS, length=T, generations=G)
    logp, _ = logprobs_of(model, rollout)
    assert (
        max(distance_to_own_forward(model, rollout, rollout.logp), distance_to_own_forward(model, rollout, logp)) > 1e-2
    )


@pytest.mark.parametrize("name", FAST_FAMILIES)
def test_a_decoding_step_of_a_fast_family_never_syncs_with_the_host(name, monkeypatch):
    without_capture(monkeypatch)
    model, _ = make_architecture(name)
    assert has_fast_path(model)
    with torch.no_grad():
        sampling_params = SamplingParams(2, 8)
        decoder = GraphDecoder(model, DecoderSpec(2, 64, sampling_params, (3, 4), 3))
        ids = torch.ones(2, 5, dtype=torch.long)
        request = SamplingRequest(EncodedPrompts(ids, ids > 0), sampling_params, (3, 4), 3)
        decoder.load_request(request, packed_prompts(model, EncodedPrompts(ids[:, :-1], ids[:, :-1] > 0)))
        with Tape() as tape:
            decoder.draw_next_tokens()
    assert tape.read_tensors


@pytest.mark.parametrize("name", mostly_slow(set(ARCHITECTURES) - REFUSED, ("gemma2",)))
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradient_of_each_architecture_equals_that_of_single_rows(name, checkpointing):
    model, tokenizer = make_architecture(name)
    rollout = sample(model, tokenizer, PROMPTS, length=T, generations=G)
    disable_dropout(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(own_logp(model, rollout).sum(), trained, materialize_grads=True)
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    logp, _ = logprobs_of(model, rollout)
    got = torch.autograd.grad(logp[rollout.mask].sum(), trained, materialize_grads=True)
    largest = max(gradient.abs().max() for gradient in expected)
    assert all((g - w).abs().max() < 1e-4 * largest for g, w in zip(got, expected, strict=True))


# ---- the document


@pytest.mark.slow
def test_architectures_document_says_fast_plain_or_refused():
    document = Path(selfcheck.__file__).with_name("ARCHITECTURES.md").read_text(encoding="utf-8")
    written = [line for line in document.splitlines() if line.startswith("| ")]
    for name, line in zip(ARCHITECTURES, written[1:], strict=True):
        how = "refused" if name in REFUSED else "fast" if has_fast_path(make_architecture(name)[0]) else "plain"
        assert line == f"| {name} | {how} |"
