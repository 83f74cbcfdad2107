"""Sampling completions, and scoring them again: the two sides that have to agree.

`sample_completions` records the log-probability of each token while it samples. `score_logprobs` computes it
again, with gradient, for the same token ids: nothing is ever decoded and re-encoded in between. In float32 the two
agree to 1e-4. Where this file departs from the usual code, on purpose: a prompt that G completions share is computed
once, not G times, by the sampler and by the scorer. How tokens are drawn stands in `grpo_lab.sampling`, and in
`grpo_lab.decoding` for a card.
"""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from grpo_lab.logprobs import chunked_logprobs_and_entropy, completion_mask, token_entropy, token_logprobs
from grpo_lab.rollout.attention import attention_mask
from grpo_lab.rollout.dynamic import Sampling, sample_dynamic
from grpo_lab.rollout.static import sample_static

LOGITS_AT_ONCE = 2**25  # numbers; above this the logits are computed in chunks (128 MiB in float32)


@dataclass
class Rollout:
    """P prompts with G completions each, B = P*G rows. `rollout[rows]` is a rollout of some rows, with all prompts."""

    prompt_ids: Int[Tensor, "P L"]  # padded on the left
    prompt_mask: Bool[Tensor, "P L"]
    prompt_of_row: Int[Tensor, " B"]  # which prompt a row answers
    completion_ids: Int[Tensor, "B T"]  # padded on the right
    mask: Bool[Tensor, "B T"]  # up to and with the first end token
    logp: Float[Tensor, "B T"]  # recorded while sampling; 0 where the mask is False
    entropy: Float[Tensor, "B T"]  # recorded while sampling
    truncated: Bool[Tensor, " B"]  # stopped by the length limit
    texts: list[str]

    @property
    def num_generations(self) -> int:
        return len(self.completion_ids) // len(self.prompt_ids)

    def __getitem__(self, rows: slice | Int[Tensor, " R"]) -> "Rollout":
        by_row = ("prompt_of_row", "completion_ids", "mask", "logp", "entropy", "truncated")
        places = range(len(self.texts))[rows] if isinstance(rows, slice) else rows.tolist()
        return replace(
            self, **{name: getattr(self, name)[rows] for name in by_row}, texts=[self.texts[place] for place in places]
        )


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
    cache_implementation: str | None = None,
) -> Rollout:
    """Sample G completions of each prompt, and record what the policy thought of them.

    Args:
        model, tokenizer: as `load_policy` returns them.
        prompts: P strings or message lists.
        num_generations: G, completions of each prompt.
        max_completion_length: limit in tokens.
        temperature: greater than 0. top_k = 0, top_p = 1 and repetition_penalty = 1 are neutral.
        cache_implementation: how keys and values are kept. "dynamic": in tensors that grow, by transformers'
            `generate`. "static": in tensors of fixed size, so that a card can repeat a captured step, which is many
            times faster there. None: "static" on a card, "dynamic" elsewhere. Both draw from the same distribution.

    Returns:
        A `Rollout`. Its `logp` is the log-probability under the distribution that was really sampled from, so asking
        for top_k, top_p or a penalty shows as a difference from the scored log-probabilities.
    """
    for name, value in [("num_generations", num_generations), ("max_completion_length", max_completion_length)]:
        if value < 1:
            raise ValueError(f"{name} is {value}; it has to be at least 1")
    ends = end_token_ids(model, tokenizer)
    sampling = Sampling(tuple(ends), pad_token_id(tokenizer), temperature, top_k, top_p, repetition_penalty)
    sample = _sampler(cache_implementation, model.device)
    prompt_ids, prompt_mask = (x.to(model.device) for x in encode_prompts(tokenizer, prompts))
    with evaluating(model):
        prefix = None  # keys and values of all prompt tokens but the last, computed once a prompt
        if prompt_ids.shape[1] > 1:
            _, prefix = _run_prompts(model, prompt_ids[:, :-1], prompt_mask[:, :-1])
        sequences, logp, entropy = sample(
            model, prompt_ids, prompt_mask, prefix, num_generations, max_completion_length, sampling
        )
    completion_ids, mask, truncated, texts = read_sequences(sequences, prompt_ids.shape[1], ends, tokenizer)
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        prompt_of_row=torch.arange(len(mask), device=mask.device) // num_generations,
        completion_ids=completion_ids,
        mask=mask,
        logp=torch.where(mask, logp, 0),
        entropy=torch.where(mask, entropy, 0),
        truncated=truncated,
        texts=texts,
    )


def read_sequences(
    sequences: Int[Tensor, "B S"], prompt_length: int, eos_token_ids: list[int], tokenizer
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"], Bool[Tensor, " B"], list[str]]:
    """Cut generated sequences into what training needs: the completions, which of their tokens count, and their texts.

    The ids of the completions are the very ids that were sampled, cut out and never encoded again: encoding the text
    may give other tokens ("a" + "b" sampled as two tokens reads "ab", which is one), and the policy would be scored for
    something that it did not do. The text is for the rewards alone. The end token stays in: stopping was a choice, too.

    Args:
        sequences: prompt and completion of each row, shape (B, S) with S = L + T. The prompt is padded on the left, so
            that all completions begin at the same column; what follows a completion's first end token is padding.
        prompt_length: L, columns that the prompt takes, its padding included.
        eos_token_ids: every token that ends a completion. The padding token may be one of them.
        tokenizer: decodes the tokens; special tokens do not show in the text.

    Returns:
        completion_ids: shape (B, T). mask: shape (B, T), True up to and with the first end token. truncated: shape
        (B,), True where no end token came before the length limit. texts: B strings of the tokens under the mask.
    """
    completion_ids = sequences[:, prompt_length:]
    mask = completion_mask(completion_ids, eos_token_ids)
    truncated = ~torch.isin(completion_ids, torch.tensor(eos_token_ids, device=mask.device)).any(-1)
    rows = zip(completion_ids.cpu(), mask.cpu(), strict=True)
    texts = [tokenizer.decode(row[keep], skip_special_tokens=True) for row, keep in rows]
    return completion_ids, mask, truncated, texts


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
        chunk = head_chunk(*head.weight.shape, head.weight.device.type)
        logp, entropy = chunked_logprobs_and_entropy(hidden, head.weight, completion_ids, temperature, chunk)
        return logp, entropy if with_entropy else None
    logits = head(hidden)
    entropy = token_entropy(logits, temperature) if with_entropy else None
    return token_logprobs(logits, completion_ids, temperature), entropy


def head_chunk(vocab_size: int, hidden_size: int, device_type: str) -> int:
    """Tokens whose logits are made at a time where they are too many to be made at once.

    On a card each chunk ends with adding a product of the embedding's size, so a few large chunks are much faster than
    many small ones. With half as many tokens as the model is wide, the two float32 copies of the logits take as much as
    the float32 gradient that stands beside them, and the additions about as long as one of the products.
    """
    chunk = max(1, LOGITS_AT_ONCE // (4 * vocab_size))
    return max(chunk, hidden_size // 2) if device_type == "cuda" else chunk


def _hidden_plain(model, prompt_ids, prompt_mask, completion_ids, mask, prompt_of_row):
    ids = torch.cat([prompt_ids[prompt_of_row], completion_ids], dim=1)
    attention = torch.cat([prompt_mask[prompt_of_row], mask], dim=1)
    looks_at = attention_mask(model, attention, queries=attention.shape[1])
    out = model.base_model(ids, attention_mask=looks_at, position_ids=_positions(attention), use_cache=False)
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
    looks_at = attention_mask(model, attention, queries=positions.shape[1])
    rest = model.base_model(
        completion_ids[:, :-1], attention_mask=looks_at, position_ids=positions, past_key_values=cache
    )
    return torch.cat([last, rest.last_hidden_state], dim=1)


def _run_prompts(model, prompt_ids, prompt_mask):
    cache = DynamicCache(config=model.config)
    positions = _positions(prompt_mask)
    out = model.base_model(
        prompt_ids, attention_mask=prompt_mask.long(), position_ids=positions, past_key_values=cache, use_cache=True
    )
    return out.last_hidden_state, cache


def _positions(attention: Tensor) -> Tensor:
    """Count real tokens only, so that padding on the left moves nothing."""
    return (attention.long().cumsum(-1) - 1).clamp(min=0)


@contextmanager
def evaluating(model):
    """Evaluation mode (no dropout) for a while, then whichever it was in before."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _sampler(cache_implementation: str | None, device: torch.device):
    allowed = {None: sample_static if device.type == "cuda" else sample_dynamic}
    allowed |= {"dynamic": sample_dynamic, "static": sample_static}
    if cache_implementation not in allowed:
        names = ", ".join(map(repr, allowed))
        raise ValueError(f"cache_implementation is {cache_implementation!r}; allowed are {names}")
    return allowed[cache_implementation]
