"""The log-probability of each token of a completion again, with gradient, for the same token ids.

In float32 it agrees with what was recorded while sampling to 1e-4. On the fast path (see `fast_paths.py`) a prompt that
G completions share is computed once, and the logits of many tokens are made in chunks.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.logprobs import chunked_logprobs_and_entropy, token_entropy, token_logprobs
from grpo_lab.rollout.cache import additive_mask, arithmetic
from grpo_lab.rollout.fast_paths import why_plain
from grpo_lab.rollout.prompts import positions, run_prompts

LOGITS_AT_ONCE = 2**25  # numbers; above this the logits are computed in chunks (128 MiB in float32)


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
            gradient checkpointing, which allows no cache. Models that go the plain way take it as False.
        with_entropy: False saves the time and memory of the entropy; None stands in its place.

    Returns:
        Two tensors of shape (B, T); at masked positions their values mean nothing, but are finite.
    """
    inputs = (prompt_ids, prompt_mask, completion_ids, mask, prompt_of_row)
    if why_plain(model):
        logits = _logits_plain(model, *inputs)
    else:
        hidden = (_hidden_shared if share_prompts else _hidden_whole)(model, *inputs)  # B T D
        head = model.get_output_embeddings()
        if completion_ids.numel() * len(head.weight) > LOGITS_AT_ONCE:
            chunk = head_chunk(*head.weight.shape, head.weight.device.type)
            logp, entropy = chunked_logprobs_and_entropy(hidden, head.weight, completion_ids, temperature, chunk)
            return logp, entropy if with_entropy else None
        logits = head(hidden)  # B T V
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


def _logits_plain(model, prompt_ids, prompt_mask, completion_ids, mask, prompt_of_row):
    """Logits of any model by its own forward pass over whole rows, padded on the right, where it changes nothing."""
    ids = torch.cat([prompt_ids[prompt_of_row], completion_ids], dim=1)
    is_token = torch.cat([prompt_mask[prompt_of_row], mask], dim=1)
    order = (~is_token).int().argsort(dim=1, stable=True)  # tokens first
    ids, is_token = ids.gather(1, order), is_token.gather(1, order)
    logits = model(ids, attention_mask=is_token.long(), use_cache=False).logits  # B S V
    last_of_prompt = prompt_mask[prompt_of_row].sum(-1, keepdim=True) - 1  # B 1, predicts the first token
    place = last_of_prompt + torch.arange(completion_ids.shape[1], device=ids.device)
    return logits.gather(1, place[..., None].expand(-1, -1, logits.shape[-1]))


def _hidden_whole(model, prompt_ids, prompt_mask, completion_ids, mask, prompt_of_row):
    ids = torch.cat([prompt_ids[prompt_of_row], completion_ids], dim=1)
    attention = torch.cat([prompt_mask[prompt_of_row], mask], dim=1)
    mask = additive_mask(attention, attention.shape[1], arithmetic(model))
    out = model.base_model(ids, attention_mask=mask, position_ids=positions(attention), use_cache=False)
    return out.last_hidden_state[:, prompt_ids.shape[1] - 1 : -1]  # [aligned]


def _hidden_shared(model, prompt_ids, prompt_mask, completion_ids, mask, prompt_of_row):
    used, row_to_used = prompt_of_row.unique(return_inverse=True)
    prompt, cache = run_prompts(model, prompt_ids[used], prompt_mask[used])
    last = prompt[row_to_used, -1:]  # B 1 D, predicts the first token
    if completion_ids.shape[1] == 1:
        return last
    cache.batch_select_indices(row_to_used)
    attention = torch.cat([prompt_mask[prompt_of_row], mask[:, :-1]], dim=1)
    place = positions(attention)[:, prompt_ids.shape[1] :]
    mask = additive_mask(attention, place.shape[1], arithmetic(model))
    inputs = {"attention_mask": mask, "position_ids": place, "past_key_values": cache, "use_cache": True}
    rest = model.base_model(completion_ids[:, :-1], **inputs)
    return torch.cat([last, rest.last_hidden_state], dim=1)  # [aligned]
