"""The sampling parameters, the request that all samplers take, and the samples that they return."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor
from transformers.generation import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from grpo_lab.base.checks import InputError, check_at_least, check_positive
from grpo_lab.rollout.decoding.turns import EpisodeTokens
from grpo_lab.rollout.inputs import Prompts

NOT_FINITE = (
    "the model's logits are not finite, so nothing can be sampled: its weights are damaged, or have grown beyond all "
    "bounds in training (look at learning_rate, and go on from an earlier checkpoint)"
)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters, and the token ids that end and pad a completion."""

    eos_token_ids: tuple[int, ...]  # the tokens that end a completion
    pad_token_id: int  # fills a row after its end
    temperature: float = 1.0
    top_k: int = 0  # number of most likely tokens to draw from; 0 draws from all
    top_p: float = 1.0  # total probability of the most likely tokens to draw from; 1 draws from all
    repetition_penalty: float = 1.0  # 1 means no penalty

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
        """Return the logits of the distribution that tokens are drawn from: minus infinity at excluded tokens.

        ids: The tokens of each row so far, for the repetition penalty. Padding must be replaced by a token of the row;
            otherwise the padding token is penalised as well.
        logits: The logits of the model for the next token.
        """
        for warper in self._warpers:
            logits = warper(ids, logits)
        return logits


@dataclass(frozen=True)
class SamplingRequest:
    """A request to draw G completions of each of P prompts."""

    prompts: Prompts
    num_generations: int  # G
    max_completion_length: int  # tokens
    sampling: SamplingParams
    # Supplies the environment's tokens, and says which rows have ended. None without an environment.
    episode_tokens: EpisodeTokens | None = None
    use_generate: bool = False  # True samples by transformers' `generate`, whatever the model

    @property
    def num_rows(self) -> int:
        """B = P * G, the number of completions."""
        return len(self.prompts.ids) * self.num_generations

    def in_parts(self, num_parts: int) -> list["SamplingRequest"]:
        """Split the request into requests for consecutive prompts, `num_parts` of them or fewer."""
        prompts = zip(self.prompts.ids.chunk(num_parts), self.prompts.mask.chunk(num_parts), strict=True)
        return [replace(self, prompts=Prompts(ids, mask)) for ids, mask in prompts]


class Samples(NamedTuple):
    """The completions that a sampler has drawn."""

    sequences: Int[Tensor, "B S"]  # prompt and completion, padded after the end
    logp: Float[Tensor, "B T"]  # undefined after the end
    entropy: Float[Tensor, "B T"]  # undefined after the end
    steps: int  # number of token steps


def entropy_of(log_pi: Float[Tensor, "B V"], pi: Float[Tensor, "B V"]) -> Float[Tensor, " B"]:
    """Return the entropy of each row in nats; a token of probability 0 (log-probability -infinity) adds nothing."""
    return -log_pi.clamp(min=-1e9).mul_(pi).sum(-1)


def check_sampling(temperature: float, top_k: int, top_p: float, repetition_penalty: float) -> None:
    """Raise InputError for a sampling parameter that is out of its range."""
    check_positive("temperature", temperature)
    check_at_least("top_k", top_k, 0)
    if not 0 < top_p <= 1:
        raise InputError("top_p", top_p, "it must be positive and at most 1")
    check_positive("repetition_penalty", repetition_penalty)
