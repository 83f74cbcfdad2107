"""The sampler for any model: transformers' `generate`, with a record of each token's log-probability.

The checkpoint's own generation_config is set aside: its top_k, top_p and repetition penalty would make the sampler a
different policy from the one that is trained. The recorded log-probabilities are those of the distribution that the
tokens are drawn from.
"""

import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from grpo_lab.base.checks import RunError
from grpo_lab.config.sampling_params import SamplingParams
from grpo_lab.rollout.decoding.episode_tokens import NOT_FORCED, EpisodeTokens
from grpo_lab.rollout.decoding.sampling_request import NOT_FINITE, Samples, SamplingRequest, entropy_of, warp
from grpo_lab.rollout.model import set_aside_generation_config


def sample_by_generate(model, request: SamplingRequest) -> Samples:
    """Draw the completions of a request with `generate`, which supports every architecture of transformers."""
    sampling = request.sampling
    episode_tokens = request.episode_tokens
    ids, mask = (x.repeat_interleave(sampling.num_generations, 0) for x in request.prompts)
    recorder = _LogprobRecorder(sampling, ~mask, episode_tokens)
    # In an episode, `episode_tokens` decides when a row ends: an end token may end only a turn.
    eos_token_ids = None if episode_tokens is not None else list(request.eos_token_ids) or None
    settings = GenerationConfig(
        do_sample=True,
        max_new_tokens=sampling.max_completion_length,
        eos_token_id=eos_token_ids,
        pad_token_id=request.pad_token_id,
        top_k=0,
    )
    keywords = {"generation_config": settings, "logits_processor": [recorder]}
    if episode_tokens is not None:
        keywords["stopping_criteria"] = [_StopWhenDone(episode_tokens)]
    with set_aside_generation_config(model):
        sequences = model.generate(ids, attention_mask=mask.long(), **keywords)
    logp, entropy = recorder.finish(sequences[:, -1])
    return Samples(sequences, logp, entropy, steps=logp.shape[1])


class _StopWhenDone(StoppingCriteria):
    """A stopping criterion that passes each new token to `episode_tokens`, and stops rows whose episode has ended."""

    def __init__(self, episode_tokens: EpisodeTokens):
        self.episode_tokens = episode_tokens

    def __call__(self, input_ids, scores, **_):
        self.episode_tokens.append(range(len(input_ids)), input_ids[:, -1].tolist())
        return torch.tensor(self.episode_tokens.done, device=input_ids.device)


class _LogprobRecorder(LogitsProcessor):
    """A logits processor that applies the sampling parameters, and records the log-probability of each drawn token."""

    def __init__(self, sampling: SamplingParams, is_padding: Bool[Tensor, "B L"], episode_tokens: EpisodeTokens | None):
        self.sampling = sampling
        self.is_padding = is_padding
        self.episode_tokens = episode_tokens
        self.log_pi: Tensor | None = None
        self.logp: list[Tensor] = []
        self.entropy: list[Tensor] = []

    def __call__(self, input_ids, logits):
        self._record_logp(input_ids[:, -1])
        length = self.is_padding.shape[1]
        prompt = torch.where(self.is_padding, input_ids[:, length - 1 : length], input_ids[:, :length])
        logits = warp(self.sampling, torch.cat([prompt, input_ids[:, length:]], dim=1), logits)
        self.log_pi = log_pi = logits.log_softmax(-1)
        if log_pi.isnan().any():
            raise RunError(NOT_FINITE)
        self.entropy.append(entropy_of(log_pi, log_pi.exp()))
        if self.episode_tokens is not None:
            forced = torch.tensor(self.episode_tokens.next_forced_tokens(), device=logits.device)[:, None]
            is_forced = torch.arange(logits.shape[1], device=logits.device) == forced
            forced_logits = torch.zeros_like(logits).masked_fill(~is_forced, -torch.inf)
            logits = torch.where(forced == NOT_FORCED, logits, forced_logits)
        return logits

    def _record_logp(self, token):
        if self.log_pi is not None:
            self.logp.append(self.log_pi.gather(-1, token[:, None])[:, 0])

    def finish(self, last_token):
        self._record_logp(last_token)
        return torch.stack(self.logp, dim=1), torch.stack(self.entropy, dim=1)
