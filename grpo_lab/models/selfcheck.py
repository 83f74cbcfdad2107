"""A few tokens, when a model is loaded: is what we sample and score what the model itself says?

The fast paths call the layers of a model with masks, positions and caches of ours, and the plain way relies on what
transformers makes of padding. A mistake in either trains without a word. So a few completions of two prompts, one of
them padded, are sampled, and their log-probabilities are held against those of the model's own forward pass over each
whole sequence, without padding or cache. A model for which they differ is refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.logprobs import token_logprobs
from grpo_lab.models.frozen import without_dropout
from grpo_lab.rollout.dynamic import Sampling, sample_dynamic
from grpo_lab.rollout.fast_paths import check_static, context_length, why_plain
from grpo_lab.rollout.prompts import evaluating
from grpo_lab.rollout.score import score_logprobs
from grpo_lab.rollout.static import sample_static

LENGTH, STEPS, PROMPTS, GENERATIONS = 6, 3, 2, 2  # columns of a prompt, tokens of a completion, and how many of each
PADDING = 2  # columns of it before the first prompt
DRAW_EXPERTS = ("phimoe",)  # in training mode, where two are nearly as good: a few tokens would seldom show it

# Nats a token, in the mean. Float32: ten times what the worst token of a sound model may differ by. A bf16 logit from
# 16 to 32 is exact to 1/16, and the means of sound models on a card are below 0.03; float16, and the TensorFloat32 of
# a card, are 8 times as fine. What is wrong is seldom wrong by less than a tenth of a nat.
FLOAT32 = 1e-3
TOLERANCE = {torch.bfloat16: 0.15, torch.float16: 0.02}


def self_check(model, checkpointing: bool = False) -> str | None:
    """Sample and score a few tokens in every way that is open to the model; compare with its own forward pass.

    checkpointing: score in training mode with gradient checkpointing instead, as a run with that setting does.

    Returns:
        What is wrong, and by how much; None if nothing is. Neither the model nor the stream of random numbers changes.
    """
    devices = range(torch.cuda.device_count())
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=devices):
        check = _Check(model)
        return check.checkpointed() if checkpointing else check.fault()


def ensure_checked(model, checkpointing: bool = False) -> None:
    """Check a model; one of each architecture is looked at.

    Raises:
        ValueError: if its weights are not finite, or if it can be neither sampled nor scored rightly.
    """
    if broken := next((name for name, value in model.named_parameters() if not value.isfinite().all()), None):
        raise ValueError(f"model has weights that are not finite, first in {broken}; expected numbers: it is damaged")
    if not (fault := _fault_of(model, checkpointing)):
        return
    if checkpointing:
        raise ValueError(f"gradient_checkpointing is True; expected False for this model: {fault}")
    kind = f"{type(model).__name__} ({model.config.model_type})"
    raise ValueError(f"model is a {kind}, which cannot be trained here: {fault}")


_faults: dict[tuple, str | None] = {}  # of an architecture, as the models of this process had it


def _fault_of(model, checkpointing: bool) -> str | None:
    sizes = tuple((name, *parameter.shape) for name, parameter in model.named_parameters())
    kind = (type(model), model.config.to_json_string(), model.config._attn_implementation, model.dtype, model.device)
    known = (*kind, sizes, checkpointing)
    if known not in _faults:
        _faults[known] = self_check(model, checkpointing)
    return _faults[known]


def check_model(model, config) -> None:
    """Raise ValueError if a model cannot be trained under the settings of a run, before its first step."""
    ensure_checked(model)
    if config.gradient_checkpointing:
        ensure_checked(model, checkpointing=True)
    if config.cache_implementation == "static":
        check_static(model)


def tolerance(dtype: torch.dtype) -> float:
    """By how many nats a token, in the mean, sampler and scorer may differ from the model's own forward pass."""
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return TOLERANCE.get(dtype, TOLERANCE[torch.float16] if tf32 else FLOAT32)


class _Check:
    def __init__(self, model):
        self.model = model
        self.prompt_ids, self.prompt_mask = _prompts(model)
        self.row = torch.arange(PROMPTS * GENERATIONS, device=model.device) // GENERATIONS

    def fault(self) -> str | None:
        """Of the samplers and scorers that are open to the model, the first that is wrong."""
        if why_plain(self.model):
            return self.sampler("", sample_dynamic) or self.scorer("")
        samplers = (("with the dynamic cache", sample_dynamic), ("with the static cache", sample_static))
        scorers = (("with shared prompts", True), ("without shared prompts", False))
        found = (check(*of) for check, each in ((self.sampler, samplers), (self.scorer, scorers)) for of in each)
        return next(filter(None, found), None)

    def checkpointed(self) -> str | None:
        """What is wrong with scoring in training mode with gradient checkpointing."""
        if not self.model.supports_gradient_checkpointing:
            return f"transformers has none for {type(self.model).__name__}"
        if self.model.config.model_type in DRAW_EXPERTS:
            return f"in training mode, which it needs, {type(self.model).__name__} draws experts by chance"
        with _checkpointing(self.model):
            return self.scorer("with gradient checkpointing")

    def sampler(self, how: str, sample: Callable) -> str | None:
        def compare():
            torch.manual_seed(0)
            sampling = Sampling((), 0)  # no token ends a completion
            prompts = (self.prompt_ids, self.prompt_mask)
            sequences, logp, _ = sample(self.model, *prompts, GENERATIONS, STEPS, sampling)
            return logp - self._own_logp(sequences[:, self.prompt_ids.shape[1] :])

        return self._fault(f"the sampler {how}".strip(), compare)

    def scorer(self, how: str, share_prompts: bool = False) -> str | None:
        def compare():
            completion_ids = self.prompt_ids.repeat_interleave(GENERATIONS, 0)[:, -STEPS:].flip(0)
            mask = torch.ones_like(completion_ids, dtype=torch.bool)
            given = (self.prompt_ids, self.prompt_mask, completion_ids, mask, self.row)
            own = self._own_logp(completion_ids)
            with torch.enable_grad():  # checkpointed layers work otherwise without
                logp, _ = score_logprobs(self.model, *given, share_prompts=share_prompts, with_entropy=False)
            return logp.detach() - own

        return self._fault(f"the scorer {how}".strip(), compare)

    def _own_logp(self, completion_ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """What the model says in evaluation mode, of whole sequences without padding and without a cache."""
        parts = []
        with evaluating(self.model):
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
    """Random tokens within the context, the first prompt padded on the left."""
    limit = context_length(model.config)
    length = max(PADDING + 1, min(LENGTH, (limit or LENGTH + STEPS) - STEPS))
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
