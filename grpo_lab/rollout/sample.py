"""Sampling G completions of each prompt, with the log-probability of each token recorded when it is drawn.

`sample_completions` goes from prompts as text to a `Rollout`; `dispatch.py` chooses the sampler that draws the tokens.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from grpo_lab.config.sampling_params import SamplingParams
from grpo_lab.logprobs import completion_mask
from grpo_lab.rollout.completion_texts import CompletionTexts
from grpo_lab.rollout.decoding.dispatch import sample_sequences
from grpo_lab.rollout.decoding.sampling_request import SamplingRequest
from grpo_lab.rollout.model import evaluation_mode
from grpo_lab.rollout.prompting.prompt_checks import check_context_length
from grpo_lab.rollout.prompting.prompts import encode_prompts, end_token_ids, pad_token_id
from grpo_lab.rollout.rollout import EncodedPrompts, Rollout


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
            has changed needs it. None takes a faster sampler for the models of `fast_paths.py`.

    Returns:
        A `Rollout`. Its `logp` is the log-probability under the distribution that the tokens were drawn from. With
        top_k, top_p or a penalty, this differs from the recomputed log-probability.

    Raises:
        ValueError: if a setting is out of its range, or if a prompt cannot be encoded or leaves no room in the context.
            It is raised before anything is sampled.
    """
    sampling = SamplingParams(
        num_generations,
        max_completion_length,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        cache_implementation=cache_implementation,
    )
    return sample_prompts(model, tokenizer, prompts, sampling)


@torch.no_grad()
def sample_prompts(model, tokenizer, prompts: list, sampling: SamplingParams) -> Rollout:
    """Sample completions of each prompt, as `sample_completions` does, with the settings in one object."""
    encoded = encode_prompts(tokenizer, prompts)
    request = make_sampling_request(model, tokenizer, encoded, sampling)
    with evaluation_mode(model):
        samples = sample_sequences(model, request)
    eos_token_ids = list(request.eos_token_ids)
    prompt_length = request.prompts.ids.shape[1]
    completion_texts = CompletionTexts(tokenizer, encoded, sampling.num_generations, eos_token_ids)
    completion_ids, mask, truncated, texts = read_sequences(
        samples.sequences, prompt_length, eos_token_ids, completion_texts.tokenizer
    )
    # The rewards also see the opening <think> tag if the prompt ends with it.
    texts = [completion_texts.with_prefix(row, text) for row, text in enumerate(texts)]
    return Rollout.without_environment(
        prompt_ids=request.prompts.ids,
        prompt_mask=request.prompts.mask,
        prompt_of_row=torch.arange(len(mask), device=mask.device) // sampling.num_generations,  # [groups]
        completion_ids=completion_ids,  # [ids]
        mask=mask,
        logp=torch.where(mask, samples.logp, 0),
        entropy=torch.where(mask, samples.entropy, 0),
        truncated=truncated,
        texts=texts,
    )


def make_sampling_request(model, tokenizer, encoded: EncodedPrompts, sampling: SamplingParams) -> SamplingRequest:
    """Return the request for completions of encoded prompts, without an environment, on the model's device.

    Raises:
        InputError: if a prompt leaves no room in the context.
    """
    for index, tokens in enumerate(encoded.mask.sum(-1).tolist()):
        check_context_length(model.config, tokens, sampling.max_completion_length, f"prompts[{index}]")
    eos_token_ids = tuple(end_token_ids(model, tokenizer))
    return SamplingRequest(encoded.to(model.device), sampling, eos_token_ids, pad_token_id(tokenizer))


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
