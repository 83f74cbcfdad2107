"""Sampling completions, and scoring them again: the two sides that have to agree.

`sample_completions` records the log-probability of each token while it samples. `score_logprobs` computes it
again, with gradient, for the same token ids: nothing is ever decoded and re-encoded in between. In float32 the two
agree to 1e-4. Where this file departs from the usual code, on purpose: the checkpoint's own generation_config is set
aside (its top_k, top_p and repetition penalty would make the sampler another policy than the one that is scored), and
a prompt that G completions share is computed once, not G times.
"""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessor
from transformers.generation import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from grpo_lab.logprobs import chunked_logprobs_and_entropy, completion_mask, token_entropy, token_logprobs

LOGITS_AT_ONCE = 2**25  # numbers; above this the logits are computed in chunks (128 MiB in float32)


@dataclass
class Rollout:
    """P prompts with G completions each, B = P*G rows; row b belongs to prompt b // G."""

    prompt_ids: Int[Tensor, "P L"]  # padded on the left
    prompt_mask: Bool[Tensor, "P L"]
    completion_ids: Int[Tensor, "B T"]  # padded on the right
    mask: Bool[Tensor, "B T"]  # up to and with the first end token
    logp: Float[Tensor, "B T"]  # recorded while sampling; 0 where the mask is False
    entropy: Float[Tensor, "B T"]  # recorded while sampling
    truncated: Bool[Tensor, " B"]  # stopped by the length limit
    texts: list[str]

    @property
    def num_generations(self) -> int:
        return len(self.completion_ids) // len(self.prompt_ids)


def encode_prompts(tokenizer, prompts: list) -> tuple[Int[Tensor, "P L"], Bool[Tensor, "P L"]]:
    """Turn prompts (strings, or message lists for the chat template) into ids, padded on the left."""
    if not prompts:
        raise ValueError("prompts is empty; at least one prompt is needed")
    ids = [_encode(tokenizer, prompt) for prompt in prompts]
    length, pad = max(map(len, ids)), pad_token_id(tokenizer)
    prompt_ids = torch.tensor([[pad] * (length - len(row)) + row for row in ids])
    prompt_mask = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in ids])
    return prompt_ids, prompt_mask


def _encode(tokenizer, prompt) -> list[int]:
    if isinstance(prompt, str):
        if ids := tokenizer(prompt)["input_ids"]:
            return ids
        raise ValueError(f"prompt is {prompt!r}, which has no token; the first completion token needs one to follow")
    if not (isinstance(prompt, list) and prompt and all(isinstance(m, dict) for m in prompt)):
        raise ValueError(f"prompt is {prompt!r}; allowed are a string and a non-empty list of messages")
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]


def pad_token_id(tokenizer) -> int:
    """The padding token, or the end token in its place: padding is masked by position, so nothing is confused."""
    if tokenizer.eos_token_id is None:
        raise ValueError("tokenizer has no eos_token, so no completion could end; set one")
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def end_token_ids(model, tokenizer) -> list[int]:
    """Every token that ends a completion: the tokenizer's, and those the checkpoint names."""
    named = model.generation_config.eos_token_id
    named = named if isinstance(named, list) else [named]
    return sorted({token for token in [*named, tokenizer.eos_token_id] if token is not None})


@torch.no_grad()
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
) -> Rollout:
    """Sample G completions of each prompt through transformers' `generate`, and record what the policy thought of them.

    Args:
        model, tokenizer: as `load_policy` returns them.
        prompts: P strings or message lists.
        num_generations: G, completions of each prompt.
        max_completion_length: limit in tokens.
        temperature: greater than 0. top_k = 0, top_p = 1 and repetition_penalty = 1 are neutral.

    Returns:
        A `Rollout`. Its `logp` is the log-probability under the distribution that was really sampled from, so asking
        for top_k, top_p or a penalty shows as a difference from the scored log-probabilities.
    """
    _check_sampling(num_generations, max_completion_length, temperature, top_k, top_p, repetition_penalty)
    prompt_ids, prompt_mask = (x.to(model.device) for x in encode_prompts(tokenizer, prompts))
    ends, pad = end_token_ids(model, tokenizer), pad_token_id(tokenizer)
    warpers = _warpers(prompt_mask, num_generations, temperature, top_k, top_p, repetition_penalty)
    recorder = _Recorder()
    settings = GenerationConfig(
        do_sample=True, max_new_tokens=max_completion_length, eos_token_id=ends, pad_token_id=pad, top_k=0
    )
    with _set_aside_generation_config(model), _evaluating(model):
        sequences = model.generate(
            prompt_ids.repeat_interleave(num_generations, 0),
            attention_mask=prompt_mask.repeat_interleave(num_generations, 0).long(),
            past_key_values=_shared_prefix(model, prompt_ids, prompt_mask, num_generations),
            generation_config=settings,
            logits_processor=[*warpers, recorder],
        )
    completion_ids = sequences[:, prompt_ids.shape[1] :]
    mask = completion_mask(completion_ids, ends)
    logp, entropy = recorder.finish(completion_ids)
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=completion_ids,
        mask=mask,
        logp=torch.where(mask, logp, 0),
        entropy=torch.where(mask, entropy, 0),
        truncated=~torch.isin(completion_ids, torch.tensor(ends, device=mask.device)).any(-1),
        texts=[
            tokenizer.decode(row[keep], skip_special_tokens=True)
            for row, keep in zip(completion_ids.cpu(), mask.cpu(), strict=True)
        ],
    )


def score_logprobs(
    model,
    prompt_ids: Int[Tensor, "P L"],
    prompt_mask: Bool[Tensor, "P L"],
    completion_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    prompt_of_row: Int[Tensor, " B"],
    *,
    temperature: float = 1.0,
    share_prompts: bool = True,
    with_entropy: bool = True,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"] | None]:
    """Log-probability and entropy of given completions under the model, with gradient if it is enabled.

    Args:
        prompt_of_row: which prompt each row answers, shape (B,).
        share_prompts: compute each prompt once and let its completions attend to it. Same values; False is needed with
            gradient checkpointing, which allows no cache.
        with_entropy: False saves the time and memory of the entropy; None stands in its place.

    Returns:
        Two tensors of shape (B, T); at masked positions their values mean nothing, but are finite.
    """
    hidden_states = _hidden_shared if share_prompts else _hidden_plain
    hidden = hidden_states(model, prompt_ids, prompt_mask, completion_ids, mask, prompt_of_row)  # B T D
    head = model.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        raise ValueError("model has a bias in its output embedding, which is not supported")
    logits_size = completion_ids.numel() * len(head.weight)
    if logits_size > LOGITS_AT_ONCE:
        chunk = max(1, LOGITS_AT_ONCE // (4 * len(head.weight)))
        logp, entropy = chunked_logprobs_and_entropy(hidden, head.weight, completion_ids, temperature, chunk)
        return logp, entropy if with_entropy else None
    logits = head(hidden)
    entropy = token_entropy(logits, temperature) if with_entropy else None
    return token_logprobs(logits, completion_ids, temperature), entropy


def _hidden_plain(model, prompt_ids, prompt_mask, completion_ids, mask, prompt_of_row):
    ids = torch.cat([prompt_ids[prompt_of_row], completion_ids], dim=1)
    attention = torch.cat([prompt_mask[prompt_of_row], mask], dim=1)
    out = model.base_model(ids, attention_mask=attention.long(), position_ids=_positions(attention), use_cache=False)
    return out.last_hidden_state[:, prompt_ids.shape[1] - 1 : -1]


def _hidden_shared(model, prompt_ids, prompt_mask, completion_ids, mask, prompt_of_row):
    used, row_to_used = prompt_of_row.unique(return_inverse=True)
    prompt, cache = _run_prompts(model, prompt_ids[used], prompt_mask[used])
    last = prompt[row_to_used, -1:]  # B 1 D, predicts the first token
    if completion_ids.shape[1] == 1:
        return last
    cache.batch_select_indices(row_to_used)
    attention = torch.cat([prompt_mask[prompt_of_row], mask[:, :-1]], dim=1)
    positions = _positions(attention)[:, prompt_ids.shape[1] :]
    rest = model.base_model(
        completion_ids[:, :-1], attention_mask=attention.long(), position_ids=positions, past_key_values=cache
    )
    return torch.cat([last, rest.last_hidden_state], dim=1)


def _run_prompts(model, prompt_ids, prompt_mask):
    cache = DynamicCache(config=model.config)
    positions = _positions(prompt_mask)
    out = model.base_model(
        prompt_ids, attention_mask=prompt_mask.long(), position_ids=positions, past_key_values=cache, use_cache=True
    )
    return out.last_hidden_state, cache


def _shared_prefix(model, prompt_ids, prompt_mask, num_generations):
    """Keys and values of all prompt tokens but the last, computed once a prompt and repeated for its completions."""
    if prompt_ids.shape[1] == 1:
        return None
    _, cache = _run_prompts(model, prompt_ids[:, :-1], prompt_mask[:, :-1])
    cache.batch_repeat_interleave(num_generations)
    return cache


def _positions(attention: Tensor) -> Tensor:
    """Count real tokens only, so that padding on the left moves nothing."""
    return (attention.long().cumsum(-1) - 1).clamp(min=0)


class _Recorder(LogitsProcessor):
    """Stands last in line, sees the distribution that the next token is drawn from, and notes what was drawn."""

    def __init__(self):
        self.log_pi, self.logp, self.entropy = None, [], []

    def __call__(self, input_ids, scores):
        self._note(input_ids[:, -1])
        self.log_pi = scores.log_softmax(-1)
        self.entropy.append(-(self.log_pi.exp() * self.log_pi.clamp(min=-1e9)).sum(-1))
        return scores

    def _note(self, drawn):
        if self.log_pi is not None:
            self.logp.append(self.log_pi.gather(-1, drawn[:, None])[:, 0])

    def finish(self, completion_ids):
        self._note(completion_ids[:, -1])
        return torch.stack(self.logp, dim=1), torch.stack(self.entropy, dim=1)


class _RepetitionPenalty(RepetitionPenaltyLogitsProcessor):
    """transformers' own, but a row's padding is no repetition: it would depend on the other prompts of the batch."""

    def __init__(self, penalty, is_padding):
        super().__init__(penalty)
        self.is_padding = is_padding  # B L

    def __call__(self, input_ids, scores):
        length = self.is_padding.shape[1]
        prompt = torch.where(self.is_padding, input_ids[:, length - 1 : length], input_ids[:, :length])
        return super().__call__(torch.cat([prompt, input_ids[:, length:]], dim=1), scores)


def _warpers(prompt_mask, num_generations, temperature, top_k, top_p, repetition_penalty):
    warpers = []
    if repetition_penalty != 1.0:
        is_padding = ~prompt_mask.repeat_interleave(num_generations, 0)
        warpers.append(_RepetitionPenalty(repetition_penalty, is_padding))
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    return warpers


@contextmanager
def _set_aside_generation_config(model):
    """`generate` fills what is left unset from the checkpoint's own settings; during a rollout there are none."""
    kept, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = kept


@contextmanager
def _evaluating(model):
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _check_sampling(num_generations, max_completion_length, temperature, top_k, top_p, repetition_penalty):
    for name, value in [("num_generations", num_generations), ("max_completion_length", max_completion_length)]:
        if value < 1:
            raise ValueError(f"{name} is {value}; it has to be at least 1")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; it has to be greater than 0")
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; it has to be at least 0, which switches it off")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it has to be greater than 0 and at most 1, which switches it off")
    if not repetition_penalty > 0:
        raise ValueError(f"repetition_penalty is {repetition_penalty}; it has to be greater than 0; 1 switches it off")
