"""The request that all samplers take, the samples that they return, and the distribution that they draw from."""

from dataclasses import dataclass, replace
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

from grpo_lab.config.sampling_params import SamplingParams
from grpo_lab.rollout.decoding.episode_tokens import EpisodeTokens
from grpo_lab.rollout.rollout import EncodedPrompts

NOT_FINITE = (
    "the model's logits are not finite, so nothing can be sampled: its weights are damaged, or have grown beyond all "
    "bounds in training (look at learning_rate, and go on from an earlier checkpoint)"
)


@dataclass(frozen=True)
class SamplingRequest:
    """A request to draw G completions of each of P prompts: those of a rollout, or of a part of it."""

    prompts: EncodedPrompts
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]  # the tokens that end a completion
    pad_token_id: int  # fills a row after its end
    # Supplies the environment's tokens, and says which rows have ended. None without an environment.
    episode_tokens: EpisodeTokens | None = None
    # The place of a part in its rollout. A part draws the random numbers of all rows of the rollout, so that the split
    # changes no completion.
    first_row: int = 0  # number of its first row in the rollout
    num_rollout_rows: int | None = None  # number of rows of the rollout; None if the request is not a part

    @property
    def num_rows(self) -> int:
        """B = P * G, the number of completions."""
        return len(self.prompts.ids) * self.sampling.num_generations

    def in_parts(self, num_parts: int) -> list["SamplingRequest"]:
        """Split the request into `num_parts` requests for equally many consecutive prompts; `num_parts` divides P."""
        assert len(self.prompts.ids) % num_parts == 0, f"{num_parts} parts of {len(self.prompts.ids)} prompts"
        rows_per_part = self.num_rows // num_parts
        prompts = zip(self.prompts.ids.chunk(num_parts), self.prompts.mask.chunk(num_parts), strict=True)
        return [
            replace(
                self,
                prompts=EncodedPrompts(ids, mask),
                first_row=part_index * rows_per_part,
                num_rollout_rows=self.num_rows,
            )
            for part_index, (ids, mask) in enumerate(prompts)
        ]


class Samples(NamedTuple):
    """The completions that a sampler has drawn."""

    sequences: Int[Tensor, "B S"]  # prompt and completion, padded after the end
    logp: Float[Tensor, "B T"]  # undefined after the end
    entropy: Float[Tensor, "B T"]  # undefined after the end
    steps: int  # number of token steps


def warp(sampling: SamplingParams, ids: Int[Tensor, "B S"], logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """Return the logits of the distribution that tokens are drawn from: minus infinity at excluded tokens.

    Args:
        sampling: The settings of the sampler.
        ids: The tokens of each row so far, for the repetition penalty. Padding must be replaced by a token of the row;
            otherwise the padding token is penalised as well.
        logits: The logits of the model for the next token.
    """
    for warper in _warpers(sampling):
        logits = warper(ids, logits)
    return logits


def _warpers(sampling: SamplingParams) -> list[LogitsProcessor]:
    settings = (
        (RepetitionPenaltyLogitsProcessor, float(sampling.repetition_penalty), 1.0),
        (TemperatureLogitsWarper, float(sampling.temperature), 1.0),
        (TopKLogitsWarper, sampling.top_k, 0),
        (TopPLogitsWarper, sampling.top_p, 1.0),
    )
    return [warper(value) for warper, value, neutral in settings if value != neutral]


def entropy_of(log_pi: Float[Tensor, "B V"], pi: Float[Tensor, "B V"]) -> Float[Tensor, " B"]:
    """Return the entropy of each row in nats; a token of probability 0 (log-probability -infinity) adds nothing."""
    return -log_pi.clamp(min=-1e9).mul_(pi).sum(-1)
