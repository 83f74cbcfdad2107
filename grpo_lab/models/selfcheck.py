"""A few tokens, when a model is loaded: is what we sample and score what the model itself says?

Sampler and scorer call the layers of a model with masks, positions and caches of ours, and make logits of what comes
out. Each of these is right for some architectures and wrong for others, and a wrong one trains without a word: the loss
means nothing anyway. So a few completions of two prompts, one of them padded, are sampled, and their log-probabilities
held against those of the model's own forward pass over each whole sequence, without padding or cache. Where a short way
is wrong, it is closed to this model; where the plain way is wrong, the model is refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.logprobs import token_logprobs
from grpo_lab.models.frozen import without_dropout
from grpo_lab.rollout.dynamic import Sampling, sample_dynamic
from grpo_lab.rollout.prompts import Prompts, evaluating, run_prompts
from grpo_lab.rollout.score import score_logprobs
from grpo_lab.rollout.static import release, sample_static
from grpo_lab.rollout.ways import FORBIDDEN, context_length, sliding_window, ways_of, why_not_static

LENGTH, STEPS, PROMPTS, GENERATIONS = 6, 3, 2, 2  # columns of a prompt, tokens of a completion, and how many of each
PADDING = 2  # columns of it before the first prompt
DRAW_EXPERTS = ("phimoe",)  # in training mode, where two are nearly as good: a few tokens would seldom show it
SMALL_WINDOW = 128  # tokens; the prompts are made longer than a sliding window of up to this

# Nats a token, in the mean. Float32: ten times what the worst token of a sound model may differ by. A bf16 logit from
# 16 to 32 is exact to 1/16, and the means of sound models on a card are below 0.03; float16, and the TensorFloat32 of
# a card, are 8 times as fine. What is wrong is seldom wrong by less than a tenth of a nat.
FLOAT32 = 1e-3
TOLERANCE = {torch.bfloat16: 0.15, torch.float16: 0.02}


@dataclass(frozen=True)
class Verdict:
    """What the self-check found."""

    refused: str | None = None  # in which part the plain way is wrong, and by how much
    forbidden: dict[str, str] = field(default_factory=dict)  # short way -> the same
    length: int = 0  # tokens of the longest sequence that was looked at
    window: int | None = None  # a sliding window, if it is longer than that


def self_check(model) -> Verdict:
    """Sample and score a few tokens in every way that is open to the model; compare with its own forward pass.

    It takes about 14 passes over at most 40 tokens, more where a small window has to be passed. Neither the model nor
    the stream of random numbers is changed.
    """
    devices = range(torch.cuda.device_count())
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=devices):
        return _Check(model).verdict()


def ensure_checked(model) -> None:
    """Check a model that has not been checked yet, and say which short ways are closed to it.

    One model of each architecture is looked at. The attribute `rollout_forbids` of the model keeps what was found.

    Raises:
        ValueError: if the model can be neither sampled nor scored rightly.
    """
    if hasattr(model, FORBIDDEN):
        return
    if broken := next((name for name, value in model.named_parameters() if not value.isfinite().all()), None):
        raise ValueError(f"model has weights that are not finite, first in {broken}; expected numbers: it is damaged")
    sizes = tuple((name, *parameter.shape) for name, parameter in model.named_parameters())
    kind = (type(model), model.config.to_json_string(), model.config._attn_implementation, model.dtype, model.device)
    if (*kind, sizes) not in _verdicts:
        _verdicts[*kind, sizes] = self_check(model)
    verdict = _verdicts[*kind, sizes]
    if verdict.refused:
        raise ValueError(
            f"model is a {type(model).__name__} ({model.config.model_type}), which cannot be trained here: "
            f"{verdict.refused}"
        )
    setattr(model, FORBIDDEN, dict(verdict.forbidden))
    for line in _closed(model, verdict):
        print(f"policy: {line}")


_verdicts: dict[tuple, Verdict] = {}  # of an architecture, as the models of this process had it


def check_model(model, config) -> None:
    """Raise ValueError if a model cannot be trained under the settings of a run, before its first step."""
    ensure_checked(model)
    if config.gradient_checkpointing and (why := getattr(model, FORBIDDEN).get("gradient_checkpointing")):
        raise ValueError(f"gradient_checkpointing is True; expected False for this model: {why}")
    if config.cache_implementation == "static" and (why := why_not_static(model)):
        raise ValueError(f"cache_implementation is 'static'; expected 'dynamic' or None for this model: {why}")


def _closed(model, verdict: Verdict) -> Iterator[str]:
    if why := why_not_static(model):
        yield f"sampled with the dynamic cache only: {why}"
    if why := verdict.forbidden.get("shared_prompts"):
        yield f"every completion computes its own prompt: {why}"
    if why := verdict.forbidden.get("gradient_checkpointing"):
        yield f"no gradient checkpointing: {why}"
    if verdict.window is not None:
        yield (
            f"checked on {verdict.length} tokens, which is less than its sliding window of {verdict.window:,}; beyond "
            "that the masks and caches of transformers are relied on"
        )


def tolerance(dtype: torch.dtype) -> float:
    """By how many nats a token, in the mean, sampler and scorer may differ from the model's own forward pass."""
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return TOLERANCE.get(dtype, TOLERANCE[torch.float16] if tf32 else FLOAT32)


class _Check:
    def __init__(self, model):
        self.model = model
        self.prompt_ids, self.prompt_mask = _prompts(model)
        self.length = self.prompt_ids.shape[1]
        self.row = torch.arange(PROMPTS * GENERATIONS, device=model.device) // GENERATIONS
        self.completion_ids = self.own = None  # of the sampler; and what the model itself says of them

    def verdict(self) -> Verdict:
        forbidden = {}
        if ways_of(self.model).shared_prompts and (why := self.sampler() or self.scorer("with shared prompts", True)):
            forbidden["shared_prompts"] = why
        with _forbidding(self.model, forbidden):
            if why := (self.sampler() if forbidden or self.own is None else None) or self.scorer("", False):
                return Verdict(refused=why)
            if ways_of(self.model).static_cache and (why := self.static_cache()):
                forbidden["static_cache"] = why
            if why := self.checkpointed():
                forbidden["gradient_checkpointing"] = why
        window, length = sliding_window(self.model.config), self.length + STEPS
        return Verdict(None, forbidden, length, window if window is not None and window >= length else None)

    def sampler(self) -> str | None:
        def compare():
            self.completion_ids, logp = self._sample(sample_dynamic)
            self.own = self._own_logp(self.completion_ids)
            return logp - self.own

        return self._fault("the sampler", compare)

    def static_cache(self) -> str | None:
        def compare():
            ids, logp = self._sample(sample_static)
            release(self.model)
            same = torch.equal(ids, self.completion_ids)  # on the CPU both caches draw from one stream
            return logp - (self.own if same else self._own_logp(ids))

        return self._fault("the sampler with the static cache", compare)

    def scorer(self, how: str, share_prompts: bool) -> str | None:
        def compare():
            mask = torch.ones_like(self.completion_ids, dtype=torch.bool)
            given = (self.prompt_ids, self.prompt_mask, self.completion_ids, mask, self.row)
            with torch.enable_grad():  # checkpointed layers work otherwise without
                logp, _ = score_logprobs(self.model, *given, share_prompts=share_prompts, with_entropy=False)
            return logp.detach() - self.own

        return self._fault(f"the scorer {how}".strip(), compare)

    def checkpointed(self) -> str | None:
        if not self.model.supports_gradient_checkpointing:
            return f"transformers has none for {type(self.model).__name__}"
        if self.model.config.model_type in DRAW_EXPERTS:
            return f"in training mode, which it needs, {type(self.model).__name__} draws experts by chance"
        with _checkpointing(self.model):
            return self.scorer("with gradient checkpointing", False)

    def _sample(self, sampler: Callable) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T"]]:
        torch.manual_seed(0)
        prefix = None
        if ways_of(self.model).shared_prompts:
            prefix = run_prompts(self.model, self.prompt_ids[:, :-1], self.prompt_mask[:, :-1])[1]
        waiting = Prompts(self.prompt_ids, self.prompt_mask, prefix, GENERATIONS)
        sequences, logp, _ = sampler(self.model, waiting, STEPS, Sampling((), 0))  # no token ends a completion
        return sequences[:, self.length :], logp

    def _own_logp(self, completion_ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """What the model says, of whole sequences without padding and without a cache."""
        parts = []
        for prompt, (ids, mask) in enumerate(zip(self.prompt_ids, self.prompt_mask, strict=True)):
            completions = completion_ids[self.row == prompt]
            whole = torch.cat([ids[mask].expand(GENERATIONS, -1), completions], dim=1)
            logits = self.model(whole, use_cache=False).logits
            parts.append(token_logprobs(logits[:, -STEPS - 1 : -1], completions))
        return torch.cat(parts)

    def _fault(self, part: str, compare: Callable[[], Float[Tensor, "B T"]]) -> str | None:
        """What is wrong with a part: by how much it differs, or where it stops; None if nothing is."""
        try:
            difference = compare().abs().mean().item()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever an architecture that was never tried may raise
            said = str(error).strip().splitlines() or [""]
            return f"{part} stops with {type(error).__name__}: {said[0][:120]}"
        allowed = tolerance(self.model.dtype)
        if difference <= allowed:  # and NaN is not
            return None
        return (
            f"{part} differs from the model's own forward pass by {difference:.2g} nats a token (at most {allowed:g})"
        )


def _prompts(model) -> tuple[Int[Tensor, "P L"], Bool[Tensor, "P L"]]:
    """Random tokens, the first prompt padded on the left; reaching beyond a small window, within the context."""
    window, limit = sliding_window(model.config), context_length(model.config)
    length = LENGTH if window is None or window > SMALL_WINDOW else LENGTH + window
    length = max(PADDING + 1, min(length, (limit or length + STEPS) - STEPS))
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocabulary, (PROMPTS, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :PADDING] = False
    return ids.to(model.device), mask.to(model.device)


@contextmanager
def _checkpointing(model) -> Iterator[None]:
    """Training mode with gradient checkpointing, as a run has it."""
    on = model.is_gradient_checkpointing
    with without_dropout(model):
        model.gradient_checkpointing_enable()
        model.train()
        try:
            yield
        finally:
            model.eval()
            if not on:
                model.gradient_checkpointing_disable()


@contextmanager
def _forbidding(model, forbidden: dict[str, str]) -> Iterator[None]:
    before = vars(model).get(FORBIDDEN)
    setattr(model, FORBIDDEN, forbidden)
    try:
        yield
    finally:
        if before is None:
            delattr(model, FORBIDDEN)
        else:
            setattr(model, FORBIDDEN, before)
