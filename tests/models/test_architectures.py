"""Every architecture is sampled and read as it says itself, or refused when it is loaded; none wrong, none cryptic.

The oracle is the model's own forward pass over each row alone, whole, without padding and without a cache. What came
out stands in grpo_lab/models/ARCHITECTURES.md.
"""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.models import selfcheck
from grpo_lab.models.frozen import silence_dropout
from grpo_lab.models.selfcheck import ensure_checked
from grpo_lab.rollout import packing, recompute
from grpo_lab.rollout import sample as sampling
from grpo_lab.rollout.dynamic import Sampling
from grpo_lab.rollout.fast_paths import FAST_FAMILIES, is_fast
from grpo_lab.rollout.static import Decoder, run_prompts
from grpo_lab.trainer import PolicyOptimizer, accumulate_gradient
from grpo_lab.trainer.experience import make_experience
from tests.support import oracles
from tests.support.architectures import ARCHITECTURES, WINDOW, make_architecture
from tests.support.sampling import logprobs_of, sample, tokens_of
from tests.support.slow_trainer import SlowTrainer
from tests.support.tape import Tape, no_question

PROMPTS = [[{"role": "user", "content": "1+1=?0123"}], "abc?+ef0", "d"]  # ragged, and two beyond a window of 6
T, G = 5, 3
QUICK = ("qwen2 (windows)", "llama", "gemma2", "granite", "gpt2", "opt", "mamba", "rwkv")
REFUSED = {"recurrent_gemma", "minimax", "rwkv", "xlnet"}


def mostly_slow(names, quick=QUICK):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in sorted(names)]


@torch.no_grad()
def own_logp(model, rollout):
    """Literally: each row alone, and the softmax in float64."""
    table = torch.zeros(rollout.mask.shape)
    for b in range(len(table)):
        prompt, completion = tokens_of(rollout, b)
        logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0].double()
        for t, token in enumerate(completion):
            table[b, t] = logits[len(prompt) - 1 + t].log_softmax(-1)[token]
    return table


def off(model, rollout, logp):
    """How far from the model's own log-probabilities, at the worst token."""
    return (logp.detach() - own_logp(model, rollout))[rollout.mask].abs().max().item()


@pytest.mark.parametrize("name", mostly_slow(set(ARCHITECTURES) - REFUSED))
def test_what_is_open_to_an_architecture_is_right(name):
    model, tokenizer = make_architecture(name)
    ensure_checked(model)
    for cache in ("dynamic", None) if is_fast(model) else ("dynamic",):
        rollout = sample(model, tokenizer, PROMPTS, length=T, generations=G, cache_implementation=cache)
        assert rollout.completion_ids.shape[1] > 1 and rollout.prompt_ids.shape[1] > WINDOW
        assert off(model, rollout, rollout.logp) < 1e-4
    logp, _ = logprobs_of(model, rollout)
    assert off(model, rollout, logp) < 1e-4 and logp.isfinite().all()
    silence_dropout(model)
    model.gradient_checkpointing_enable()
    logp = logprobs_of(model.train(), rollout)[0]
    assert off(model.eval(), rollout, logp) < 1e-4


@pytest.mark.parametrize("name", mostly_slow(REFUSED))
def test_what_is_refused_is_wrong_indeed_and_the_sentence_says_by_how_much(name):
    model, tokenizer = make_architecture(name)
    said = r"model is a \w+ \(\w+\), which cannot be trained here: .* differ by [\d.]+ nats a token \(at most 0.001\)"
    with pytest.raises(ValueError, match=said):
        ensure_checked(model)
    rollout = sample(model, tokenizer, PROMPTS, length=T, generations=G)
    logp, _ = logprobs_of(model, rollout)
    assert max(off(model, rollout, rollout.logp), off(model, rollout, logp)) > 1e-2


@pytest.mark.parametrize("name", FAST_FAMILIES)
def test_a_step_of_a_fast_family_asks_the_host_for_nothing_so_a_card_can_capture_it(name, monkeypatch):
    no_question(monkeypatch)
    model, _ = make_architecture(name)
    assert is_fast(model)
    with torch.no_grad():
        decoder = Decoder(model, 4, 64, Sampling((3, 4), 3))
        ids = torch.ones(2, 5, dtype=torch.long)
        decoder.load(ids, ids > 0, run_prompts(model, ids[:, :-1], ids[:, :-1] > 0), 2)
        with Tape() as tape:
            decoder.step()
    assert tape.read


@pytest.mark.parametrize("name", mostly_slow(set(ARCHITECTURES) - REFUSED, ("gemma2",)))
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_gradient_of_a_step_is_that_of_a_literal_loop(name, checkpointing):
    model, tokenizer = make_architecture(name)
    ensure_checked(model)
    settings = {"generation_batch_size": 12, "num_generations": 4, "max_completion_length": T, "temperature": 0.8}
    config = GRPOConfig(**settings, beta=0.1, gradient_checkpointing=checkpointing)
    silence_dropout(model)
    rollout = sample(model, tokenizer, PROMPTS, length=T, generations=4, temperature=0.8)
    experience = make_experience(rollout, torch.randn(12, generator=torch.Generator().manual_seed(0)), config)
    slow = SlowTrainer(copy.deepcopy(model), config)
    experience = replace(experience, ref_logp=rollout.logp - 0.3)
    logp, _ = slow.logprobs(slow.model, rollout)
    means = (experience.advantages.double(), rollout.mask, logp.detach(), experience.ref_logp.double())
    loss, _ = oracles.policy_loss(logp, *means, num_items=int(rollout.mask.sum()), **config.loss_arguments())
    trained = [parameter for parameter in slow.parameters if parameter.requires_grad]
    want = torch.autograd.grad(loss, trained, allow_unused=True)
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    accumulate_gradient(model, PolicyOptimizer(model, config), experience, config)
    largest = max(gradient.abs().max() for gradient in want if gradient is not None)
    for parameter, gradient in zip((p for p in model.parameters() if p.requires_grad), want, strict=True):
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert (got - (0 if gradient is None else gradient)).abs().max() < 1e-4 * largest


# ---- mutants that must die


def _always_fast(patch):
    for module in (recompute, sampling):
        patch.setattr(module, "is_fast", lambda model: True)


def _uncounted(patch):
    patch.setattr(packing, "positions", lambda is_token: torch.zeros_like(is_token, dtype=torch.long))


def _padding_shown(patch):
    mask = packing.additive_mask
    patch.setattr(packing, "additive_mask", lambda tokens, *rest: mask(tokens | True, *rest))


MUTANTS = {
    "qwen2 with its windows ignored": ("qwen2 (windows)", _always_fast),
    "positions that do not count": ("qwen2", _uncounted),
    "a mask that shows padding": ("llama", _padding_shown),
    "granite without its scaling, as a fast family": ("granite", _always_fast),
    "gemma2 without its soft cap, as a fast family": ("gemma2", _always_fast),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_the_recomputation_is_noticed(mutant, monkeypatch):
    name, mutate = MUTANTS[mutant]
    model, tokenizer = make_architecture(name)
    rollout = sample(model, tokenizer, PROMPTS, length=T, generations=G, cache_implementation="dynamic")
    mutate(monkeypatch)
    assert off(model, rollout, logprobs_of(model, rollout)[0]) > 0.05


# ---- the document


def row_of(name: str) -> str:
    model, _ = make_architecture(name)
    try:
        ensure_checked(model)
    except ValueError:
        return f"| {name} | refused |"
    return f"| {name} | {'fast' if is_fast(model) else 'plain'} |"


@pytest.mark.slow
def test_the_document_says_what_is_so():
    document = Path(selfcheck.__file__).with_name("ARCHITECTURES.md").read_text(encoding="utf-8")
    written = [line for line in document.splitlines() if line.startswith("| ")]
    assert written[1:] == [row_of(name) for name in ARCHITECTURES]
