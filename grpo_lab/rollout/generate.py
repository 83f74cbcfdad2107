"""The distribution that a token is drawn from; and the plain way of drawing, transformers' `generate`.

The checkpoint's own generation_config is set aside: its top_k, top_p and repetition penalty would make the sampler
another policy than the one that is trained. Log-probabilities are recorded under the distribution really drawn from.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria
from transformers.generation import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from grpo_lab.base.checks import RunError, check_sampling
from grpo_lab.rollout.inputs import Prompts
from grpo_lab.rollout.prompts import set_aside_generation_config
from grpo_lab.rollout.turns import DRAWN, Turns

NOT_FINITE = (
    "the model's logits are not finite, so nothing can be sampled: its weights are damaged, or have grown beyond all "
    "bounds in training (look at learning_rate, and go on from an earlier checkpoint)"
)


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, and which of them end a completion."""

    eos_token_ids: tuple[int, ...]
    pad_token_id: int  # fills a row after its end
    temperature: float = 1.0
    top_k: int = 0  # 0, 1 and 1 are neutral
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self):
        check_sampling(self.temperature, self.top_k, self.top_p, self.repetition_penalty)

    @cached_property
    def _warpers(self) -> list[LogitsProcessor]:
        settings = (
            (RepetitionPenaltyLogitsProcessor, float(self.repetition_penalty), 1.0),
            (TemperatureLogitsWarper, float(self.temperature), 1.0),
            (TopKLogitsWarper, self.top_k, 0),
            (TopPLogitsWarper, self.top_p, 1.0),
        )
        return [warper(value) for warper, value, neutral in settings if value != neutral]

    def warp(self, ids: Int[Tensor, "B S"], logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """The logits of the distribution that is really drawn from: minus infinity where a token is forbidden.

        ids: the tokens so far, for the repetition penalty. Padding is best replaced by a token of the row itself.
        """
        for warper in self._warpers:
            logits = warper(ids, logits)
        return logits


@dataclass(frozen=True)
class SamplingRequest:
    """A request to draw G completions of each prompt, of at most so many tokens, and how."""

    prompts: Prompts
    num_generations: int
    max_completion_length: int
    sampling: Sampling
    # For episodes only. Supplies the environment's tokens and says which rows have finished.
    turns: Turns | None = None

    @property
    def rows(self) -> int:
        """B = P * G."""
        return len(self.prompts.ids) * self.num_generations

    def chunks(self, parts: int) -> list["SamplingRequest"]:
        """The request cut into parts of some prompts each."""
        prompts = zip(self.prompts.ids.chunk(parts), self.prompts.mask.chunk(parts), strict=True)
        return [replace(self, prompts=Prompts(ids, mask)) for ids, mask in prompts]


def entropy_of(log_pi: Float[Tensor, "B V"], pi: Float[Tensor, "B V"]) -> Float[Tensor, " B"]:
    """The entropy of each row in nats; a token that cannot come (minus infinity) adds nothing."""
    return -log_pi.clamp(min=-1e9).mul_(pi).sum(-1)


def sample_by_generate(
    model, request: SamplingRequest
) -> tuple[Int[Tensor, "B S"], Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Draw with `generate`, which knows every architecture of transformers.

    Returns: prompt and completion, padded after the end; log-probability and entropy, which mean nothing after the end.
    """
    sampling = request.sampling
    turns = request.turns
    ids, mask = (x.repeat_interleave(request.num_generations, 0) for x in request.prompts)
    recorder = _Recorder(sampling, ~mask, turns)
    ends = list(sampling.eos_token_ids) or None
    if turns is not None:
        ends = None  # an end token ends a turn
    settings = GenerationConfig(
        do_sample=True,
        max_new_tokens=request.max_completion_length,
        eos_token_id=ends,
        pad_token_id=sampling.pad_token_id,
        top_k=0,
    )
    keywords = {"generation_config": settings, "logits_processor": [recorder]}
    keywords |= {} if turns is None else {"stopping_criteria": [_StopWhenDone(turns)]}
    with set_aside_generation_config(model):
        sequences = model.generate(ids, attention_mask=mask.long(), **keywords)
    return sequences, *recorder.finish(sequences[:, -1])


class _StopWhenDone(StoppingCriteria):
    """A criterion that hands each new token to the turns, and says which rows are over."""

    def __init__(self, turns: Turns):
        self.turns = turns

    def __call__(self, input_ids, scores, **_):
        self.turns.append(range(len(input_ids)), input_ids[:, -1].tolist())
        return torch.tensor(self.turns.done, device=input_ids.device)


class _Recorder(LogitsProcessor):
    """A processor that makes the distribution of the next token, and records the token that was drawn."""

    def __init__(self, sampling: Sampling, is_padding: Bool[Tensor, "B L"], turns: Turns | None):
        self.sampling = sampling
        self.is_padding = is_padding
        self.turns = turns
        self.log_pi = None
        self.logp = []
        self.entropy = []

    def __call__(self, input_ids, logits):
        self._record_logp(input_ids[:, -1])
        length = self.is_padding.shape[1]
        prompt = torch.where(self.is_padding, input_ids[:, length - 1 : length], input_ids[:, :length])
        logits = self.sampling.warp(torch.cat([prompt, input_ids[:, length:]], dim=1), logits)
        self.log_pi = logits.log_softmax(-1)
        if self.log_pi.isnan().any():
            raise RunError(NOT_FINITE)
        self.entropy.append(entropy_of(self.log_pi, self.log_pi.exp()))
        if self.turns is not None:
            forced = torch.tensor(self.turns.forced(), device=logits.device)[:, None]
            is_forced = torch.arange(logits.shape[1], device=logits.device) == forced
            forced_logits = torch.zeros_like(logits).masked_fill(~is_forced, -torch.inf)
            logits = torch.where(forced == DRAWN, logits, forced_logits)
        return logits

    def _record_logp(self, token):
        if self.log_pi is not None:
            self.logp.append(self.log_pi.gather(-1, token[:, None])[:, 0])

    def finish(self, last_token):
        self._record_logp(last_token)
        return torch.stack(self.logp, dim=1), torch.stack(self.entropy, dim=1)
