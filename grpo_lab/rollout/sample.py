"""Sampling G completions of each prompt, with the log-probability of each token recorded when it is drawn.

`sample_completions` goes from prompts as text to a `Rollout`. `draw_samples` chooses the sampler that draws the
tokens, and how many prompts it samples at a time. Any model can be sampled by transformers' `generate`
(`sample_by_generate`). The models of the fast paths are sampled by our own loop (`decoding/decoder.py`), which has a
form for a CPU and a form for a GPU (`decoding/graph_decoder.py`).
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from grpo_lab.base.checks import RunError
from grpo_lab.base.process_state import random_state, set_random_state
from grpo_lab.config.settings import SamplingParams
from grpo_lab.logprobs import completion_mask
from grpo_lab.rollout.completion_texts import CompletionTexts
from grpo_lab.rollout.decoding.decoder import CpuDecoder, Decoder
from grpo_lab.rollout.decoding.graph_decoder import GraphDecoder, free_gpu_bytes, parts_that_fit, reusable_bytes
from grpo_lab.rollout.decoding.sampling_request import (
    NONFINITE_LOGITS_MESSAGE,
    NOT_FORCED,
    EpisodeTokens,
    Samples,
    SamplingRequest,
    apply_sampling_params,
    entropy_of,
)
from grpo_lab.rollout.forward.packing import packed_prompts
from grpo_lab.rollout.model import evaluation_mode, has_fast_path, set_aside_generation_config
from grpo_lab.rollout.prompts import check_context_length, encode_prompts, end_token_ids, pad_token_id
from grpo_lab.rollout.rollout import EncodedPrompts, Rollout

DECODERS = {"cpu": CpuDecoder, "cuda": GraphDecoder}  # device type to decoder; other types take `Decoder`


def sample_completions(
    model,
    tokenizer,
    prompts: list,
    num_generations: int,
    max_completion_length: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    cache_implementation: str | None = None,
) -> Rollout:
    """Sample G completions of each prompt, and record the log-probability of each token.

    Args:
        model, tokenizer: The policy and its tokenizer, as `load_policy` returns them.
        prompts: P prompts, each a string or a list of messages.
        num_generations: G, number of completions of each prompt.
        max_completion_length: Maximum number of tokens of a completion.
        temperature: The temperature of the softmax, greater than 0.
        top_k: Number of most likely tokens to draw from; 0 draws from all.
        top_p: Total probability of the most likely tokens to draw from; 1 draws from all.
        repetition_penalty: transformers' penalty for tokens that have occurred; 1 means no penalty.
        cache_implementation: "dynamic" samples by transformers' `generate`, whatever the model; a model that a wrapper
            has changed needs it. None takes a faster sampler for the models of the fast paths.

    Returns:
        A `Rollout`. Its `logp` is the log-probability under the distribution that the tokens were drawn from. With
        top_k, top_p or a penalty, this differs from the recomputed log-probability.

    Raises:
        ValueError: if a setting is out of its range, or if a prompt cannot be encoded or leaves no room in the context.
            It is raised before anything is sampled.
    """
    sampling_params = SamplingParams(
        num_generations,
        max_completion_length,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        cache_implementation=cache_implementation,
    )
    return sample_prompts(model, tokenizer, prompts, sampling_params)


@torch.no_grad()
def sample_prompts(model, tokenizer, prompts: list, sampling_params: SamplingParams) -> Rollout:
    """Sample completions of each prompt, as `sample_completions` does, with the settings in one object."""
    encoded = encode_prompts(tokenizer, prompts)
    request = make_sampling_request(model, tokenizer, encoded, sampling_params)
    with evaluation_mode(model):
        samples = draw_samples(model, request)
    eos_token_ids = list(request.eos_token_ids)
    prompt_length = request.prompts.ids.shape[1]
    completion_texts = CompletionTexts(tokenizer, encoded, sampling_params.num_generations, eos_token_ids)
    completion_ids, mask, truncated, texts = read_sequences(
        samples.sequences, prompt_length, eos_token_ids, completion_texts.tokenizer
    )
    # The rewards also see the opening <think> tag if the prompt ends with it.
    texts = [completion_texts.with_prefix(row, text) for row, text in enumerate(texts)]
    return Rollout.without_environment(
        prompt_ids=request.prompts.ids,
        prompt_mask=request.prompts.mask,
        prompt_of_row=torch.arange(len(mask), device=mask.device) // sampling_params.num_generations,  # [groups]
        completion_ids=completion_ids,  # [ids]
        mask=mask,
        logp=torch.where(mask, samples.logp, 0),
        entropy=torch.where(mask, samples.entropy, 0),
        truncated=truncated,
        texts=texts,
    )


def make_sampling_request(
    model, tokenizer, encoded: EncodedPrompts, sampling_params: SamplingParams
) -> SamplingRequest:
    """Return the request for completions of encoded prompts, without an environment, on the model's device.

    Raises:
        InputError: if a prompt leaves no room in the context.
    """
    for index, tokens in enumerate(encoded.mask.sum(-1).tolist()):
        check_context_length(model.config, tokens, sampling_params.max_completion_length, f"prompts[{index}]")
    eos_token_ids = tuple(end_token_ids(model, tokenizer))
    return SamplingRequest(encoded.to(model.device), sampling_params, eos_token_ids, pad_token_id(tokenizer))


def read_sequences(
    sequences: Int[Tensor, "B S"], prompt_length: int, eos_token_ids: list[int], tokenizer
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"], Bool[Tensor, " B"], list[str]]:
    """Split generated sequences into completion ids, masks, truncation flags and texts.

    The completion ids are the sampled ids themselves. They are never decoded and encoded again: encoding the text may
    give other tokens (the tokens "a" and "b" have the text "ab", which may be one token), and the policy would be
    rewarded for tokens that it did not sample. The texts are only for reading and for rewards. The end token belongs to
    the completion, since the policy chose to stop.

    Args:
        sequences: Prompt and completion of each row, shape (B, S) with S = L + T. The prompts are padded on the left,
            so all completions begin at the same column. Everything after the first end token of a completion is
            padding.
        prompt_length: L, number of columns of the prompt with its padding.
        eos_token_ids: All tokens that end a completion. The padding token may be one of them.
        tokenizer: The tokenizer that decodes the tokens.

    Returns:
        completion_ids: The completions, shape (B, T).
        mask: True up to and including the first end token, shape (B, T). It is
            `completion_mask(completion_ids, eos_token_ids)` of notebook 01.
        truncated: True for a row without an end token, shape (B,).
        texts: `tokenizer.decode(ids, skip_special_tokens=True)` of the tokens under the mask, B strings.
    """
    completion_ids = sequences[:, prompt_length:]
    mask = completion_mask(completion_ids, eos_token_ids)
    truncated = ~torch.isin(completion_ids, torch.tensor(eos_token_ids, device=mask.device)).any(-1)
    rows = zip(completion_ids.cpu(), mask.cpu(), strict=True)
    texts = [tokenizer.decode(row[in_completion], skip_special_tokens=True) for row, in_completion in rows]
    return completion_ids, mask, truncated, texts


def draw_samples(model, request: SamplingRequest) -> Samples:
    """Draw the completions of a request by the fastest sampler that is right for the model and its device."""
    if request.sampling_params.cache_implementation == "dynamic" or not has_fast_path(model):
        return sample_by_generate(model, request)
    decoder_class = DECODERS.get(model.device.type, Decoder)
    num_parts = 1
    if request.episode_tokens is None:  # one object has the tokens of all episodes, so these are drawn together
        num_columns = decoder_class.spec_for(request).num_columns
        free_bytes = free_gpu_bytes(model.device) + reusable_bytes()
        num_prompts, num_generations = len(request.prompts.ids), request.sampling_params.num_generations
        num_parts = parts_that_fit(model, num_prompts, num_generations, num_columns, free_bytes)
    if num_parts == 1:
        samples = _decode(model, request, decoder_class)
    else:
        samples = _decode_in_parts(model, request, decoder_class, num_parts)
    decoder_class.end_rollout()
    return samples


def _decode(model, request: SamplingRequest, decoder_class: type[Decoder]) -> Samples:
    """Draw the completions of a request with a decoder.

    Raises:
        RunError: if the log-probability of a token of the policy is not finite.
    """
    # One forward pass reads all tokens of the prompts but the last. If every prompt is one token long, there are none.
    all_but_last = EncodedPrompts(request.prompts.ids[:, :-1], request.prompts.mask[:, :-1])
    prompt_cache = packed_prompts(model, all_but_last) if all_but_last.mask.any() else None
    with decoder_class.for_request(model, request) as decoder:
        decoder.load_request(request, prompt_cache)
        num_token_steps = decoder.draw_completions(request.sampling_params.max_completion_length)
        samples = decoder.read_samples(request.prompts.ids.shape[1], num_token_steps)
        del decoder  # while this variable exists, the memory of the decoder cannot be freed
    return samples


def _decode_in_parts(model, request: SamplingRequest, decoder_class: type[Decoder], num_parts: int) -> Samples:
    """Draw the completions of a request in `num_parts` parts; they are the same as if all were drawn at once.

    For this, each part begins with the same random state and draws the random numbers of all rows. The random state
    after the rollout is the one after the part that took the most steps.
    """
    samples: list[Samples] = []
    end_states = []
    start_state = random_state(model.device)
    for part_request in request.in_parts(num_parts):
        set_random_state(model.device, start_state)
        samples.append(_decode(model, part_request, decoder_class))
        end_states.append(random_state(model.device))
    token_steps = [part.num_token_steps for part in samples]
    set_random_state(model.device, end_states[token_steps.index(max(token_steps))])
    return Samples(
        _padded_rows([part.sequences for part in samples], request.pad_token_id),
        _padded_rows([part.logp for part in samples], 0),
        _padded_rows([part.entropy for part in samples], 0),
        max(token_steps),
    )


def _padded_rows(parts: list[Tensor], padding: int) -> Tensor:
    """Join the rows of all parts into one tensor, padded on the right to the longest part."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat([pad(part, (0, longest - part.shape[1]), value=padding) for part in parts])


def sample_by_generate(model, request: SamplingRequest) -> Samples:
    """Draw the completions of a request with `generate`, which supports every architecture of transformers."""
    sampling_params = request.sampling_params
    episode_tokens = request.episode_tokens
    ids, mask = (x.repeat_interleave(sampling_params.num_generations, 0) for x in request.prompts)
    recorder = _LogprobRecorder(sampling_params, ~mask, episode_tokens)
    # In an episode, `episode_tokens` decides when a row ends: an end token may end only a turn.
    eos_token_ids = None if episode_tokens is not None else list(request.eos_token_ids) or None
    settings = GenerationConfig(
        do_sample=True,
        max_new_tokens=sampling_params.max_completion_length,
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
    return Samples(sequences, logp, entropy, num_token_steps=logp.shape[1])


class _StopWhenDone(StoppingCriteria):
    """A stopping criterion that passes each new token to `episode_tokens`, and stops rows whose episode has ended."""

    def __init__(self, episode_tokens: EpisodeTokens):
        self.episode_tokens = episode_tokens

    def __call__(self, input_ids, scores, **_):
        self.episode_tokens.append(range(len(input_ids)), input_ids[:, -1].tolist())
        return torch.tensor(self.episode_tokens.done, device=input_ids.device)


class _LogprobRecorder(LogitsProcessor):
    """A logits processor that applies the sampling parameters, and records the log-probability of each drawn token."""

    def __init__(
        self, sampling_params: SamplingParams, is_padding: Bool[Tensor, "B L"], episode_tokens: EpisodeTokens | None
    ):
        self.sampling_params = sampling_params
        self.is_padding = is_padding
        self.episode_tokens = episode_tokens
        self.log_pi: Tensor | None = None
        self.logp: list[Tensor] = []
        self.entropy: list[Tensor] = []

    def __call__(self, input_ids, logits):
        self._record_logp(input_ids[:, -1])
        length = self.is_padding.shape[1]
        prompt = torch.where(self.is_padding, input_ids[:, length - 1 : length], input_ids[:, :length])
        logits = apply_sampling_params(self.sampling_params, torch.cat([prompt, input_ids[:, length:]], dim=1), logits)
        self.log_pi = log_pi = logits.log_softmax(-1)
        if log_pi.isnan().any():
            raise RunError(NONFINITE_LOGITS_MESSAGE)
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
