"""A few tokens before a model is trained: are the log-probabilities, sampled and computed again, the model's own?

The fast paths call the layers of a model with masks, positions and caches of ours, and the plain way relies on what
transformers makes of padding. With a mistake in either, training goes on without an error. So a few completions of two
prompts, one of them padded, are held against the model's own forward pass over each whole sequence, without padding or
cache. A model for which they differ is refused.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.commands.checks import InputError
from grpo_lab.logprobs import token_logprobs
from grpo_lab.rollout import evaluating, score_logprobs
from grpo_lab.rollout.dynamic import Sampling, sample_dynamic
from grpo_lab.rollout.fast_paths import context_length, is_fast
from grpo_lab.rollout.static import sample_static

LENGTH, STEPS, PROMPTS, GENERATIONS = 6, 3, 2, 2  # columns of a prompt, tokens of a completion, and how many of each
PADDING = 2  # columns of it before the first prompt
# Nats a token, in the mean. Float32: ten times what the worst token of a sound model may differ by. A bf16 logit from
# 16 to 32 is exact to 1/16, and the means of sound models on a card are below 0.03; float16, and the TensorFloat32 of
# a card, are 8 times as fine. What is wrong is seldom wrong by less than a tenth of a nat.
FLOAT32 = 1e-3
TOLERANCE = {torch.bfloat16: 0.15, torch.float16: 0.02}

_faults: dict[tuple, str | None] = {}  # of an architecture, as the models of this process had it


def ensure_checked(model) -> None:
    """Check a model; one of each architecture is looked at.

    Raises:
        ValueError: if its weights are not finite, or if what is sampled or computed again is wrong.
    """
    if broken := next((name for name, value in model.named_parameters() if not value.isfinite().all()), None):
        found = f"has weights that are not finite, first in {broken}"
        raise InputError("model", broken, "expected numbers: it is damaged", found=found)
    kind = (type(model), model.config.to_json_string(), model.config._attn_implementation, model.dtype, model.device)
    if kind not in _faults:
        _faults[kind] = self_check(model)
    if fault := _faults[kind]:
        name = f"{type(model).__name__} ({model.config.model_type})"
        raise InputError("model", name, found=f"is a {name}, which cannot be trained here: {fault}")


@torch.no_grad()
def self_check(model) -> str | None:
    """What is wrong with sampling or log-probabilities, and by how much; None if nothing is.

    Neither the model nor the stream of random numbers changes.
    """
    ids, mask = _prompts(model)
    try:
        with evaluating(model), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            completions, said = _sampled_and_computed(model, ids, mask)
            own = _own_logp(model, ids, mask, completions)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever an architecture that was never tried may raise
        first_line, *_ = f"{error}".strip().split("\n")
        return f"a rollout stops with {type(error).__name__}: {first_line:.120}"
    exact = TOLERANCE[torch.float16] if torch.backends.cuda.matmul.allow_tf32 else FLOAT32
    allowed = TOLERANCE.get(model.dtype, exact)
    for part, logp in said.items():
        difference = (logp - own).abs().mean().item()
        if not difference <= allowed:  # and NaN is not
            by = f"by {difference:.2g} nats a token (at most {allowed:g})"
            return f"{part} differs from the model's own forward pass {by}"
    return None


def _sampled_and_computed(model, ids, mask) -> tuple[Int[Tensor, "B T"], dict[str, Float[Tensor, "B T"]]]:
    """Completions, and their log-probabilities as the sampler notes them and as they are computed again."""
    torch.manual_seed(0)
    sample = sample_static if is_fast(model) else sample_dynamic
    sequences, sampled, _ = sample(model, ids, mask, GENERATIONS, STEPS, Sampling((), 0))  # no token ends a completion
    completions = sequences[:, ids.shape[1] :]
    rows = torch.arange(PROMPTS, device=ids.device).repeat_interleave(GENERATIONS)
    given = (ids, mask, completions, torch.ones_like(completions, dtype=torch.bool), rows)
    computed, _ = score_logprobs(model, *given, with_entropy=False)
    return completions, {"the sampler": sampled, "the recomputation": computed}


def _own_logp(model, ids, mask, completions: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """What the model says of whole sequences, without padding and without a cache."""
    parts = []
    for prompt, is_token, own in zip(ids, mask, completions.split(GENERATIONS), strict=True):
        whole = torch.cat([prompt[is_token].expand(GENERATIONS, -1), own], dim=1)
        logits = model(whole, use_cache=False).logits
        parts.append(token_logprobs(logits[:, -STEPS - 1 : -1], own))
    return torch.cat(parts)


def _prompts(model) -> tuple[Int[Tensor, "P L"], Bool[Tensor, "P L"]]:
    """Random tokens within the context, the first prompt padded on the left."""
    room = (context_length(model.config) or LENGTH + STEPS) - STEPS
    shape = (PROMPTS, max(PADDING + 1, min(LENGTH, room)))
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :PADDING] = False
    return ids.to(model.device), mask.to(model.device)
