"""The choice of a sampler for a model and a device, and of how many prompts it samples at a time.

Any model can be sampled by transformers' `generate` (`generate.py`). The families of `fast_paths.py` are sampled by
our own loop (`decoder.py`), which has a form for a CPU (`cpu_decoder.py`) and a form for a GPU (`graph_decoder.py`).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_lab.base.random_state import random_state, set_random_state
from grpo_lab.rollout.decoding.cpu_decoder import CpuDecoder
from grpo_lab.rollout.decoding.decoder import Decoder, DecoderSpec
from grpo_lab.rollout.decoding.generate import sample_by_generate
from grpo_lab.rollout.decoding.gpu_memory import free_gpu_bytes, parts_that_fit
from grpo_lab.rollout.decoding.graph_decoder import GraphDecoder, reusable_bytes
from grpo_lab.rollout.decoding.sampling_request import Samples, SamplingRequest
from grpo_lab.rollout.forward.fast_paths import has_fast_path
from grpo_lab.rollout.forward.packing import packed_prompts
from grpo_lab.rollout.inputs import EncodedPrompts

DECODERS = {"cpu": CpuDecoder, "cuda": GraphDecoder}  # device type to decoder; other types take `Decoder`


def sample_sequences(model, request: SamplingRequest) -> Samples:
    """Draw the completions of a request by the fastest sampler that is right for the model and its device."""
    if request.sampling.cache_implementation == "dynamic" or not has_fast_path(model):
        return sample_by_generate(model, request)
    num_parts = 1
    decoder_class = _decoder_class(model)
    if request.episode_tokens is None:
        num_prompts, prompt_length = request.prompts.ids.shape
        num_columns = decoder_class.columns_for(prompt_length, request.sampling.max_completion_length)
        free_bytes = free_gpu_bytes(model.device) + reusable_bytes()
        num_parts = parts_that_fit(model, num_prompts, request.sampling.num_generations, num_columns, free_bytes)
    samples = _sample_part(model, request) if num_parts == 1 else _sample_in_parts(model, request, num_parts)
    decoder_class.end_rollout()
    return samples


def _decoder_class(model) -> type[Decoder]:
    return DECODERS.get(model.device.type, Decoder)


def _sample_in_parts(model, request: SamplingRequest, num_parts: int) -> Samples:
    """Draw the completions in `num_parts` parts; they are the same as if all were drawn at once.

    For this, each part begins with the same random state and draws the random numbers of all rows. The random state
    after the rollout is the one after the part that took the most steps.
    """
    samples: list[Samples] = []
    end_states = []
    start_state = random_state(model.device)
    for part_index, part_request in enumerate(request.in_parts(num_parts)):
        set_random_state(model.device, start_state)
        first_row = part_index * request.num_rows // num_parts
        samples.append(_sample_part(model, part_request, num_rollout_rows=request.num_rows, first_row=first_row))
        end_states.append(random_state(model.device))
    steps = [part.steps for part in samples]
    set_random_state(model.device, end_states[steps.index(max(steps))])
    return Samples(
        _stacked([part.sequences for part in samples], request.pad_token_id),
        _stacked([part.logp for part in samples], 0),
        _stacked([part.entropy for part in samples], 0),
        max(steps),
    )


def _stacked(parts: list[Tensor], padding: int) -> Tensor:
    """Join the rows of all parts into one tensor, padded on the right to the longest part."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat([pad(part, (0, longest - part.shape[1]), value=padding) for part in parts])


def _sample_part(model, request: SamplingRequest, num_rollout_rows: int | None = None, first_row: int = 0) -> Samples:
    """Draw the completions of a request that is a whole rollout, or a part of one.

    Args:
        model, request: The arguments of `sample_sequences`.
        num_rollout_rows: Number of rows of the whole rollout, if the request is a part of it; None if it is all of it.
        first_row: Index of the first row of the request in the rollout.

    Raises:
        RunError: if the log-probability of a token of the policy is not finite.
    """
    num_prompts, prompt_length = request.prompts.ids.shape
    # One forward pass reads all tokens of the prompts but the last. If every prompt is one token long, there are none.
    all_but_last = EncodedPrompts(request.prompts.ids[:, :-1], request.prompts.mask[:, :-1])
    prompt_cache = packed_prompts(model, all_but_last) if all_but_last.mask.any() else None
    decoder_class = _decoder_class(model)
    num_columns = decoder_class.columns_for(prompt_length, request.sampling.max_completion_length)
    spec = DecoderSpec(
        num_prompts, num_columns, request.sampling, request.eos_token_ids, request.pad_token_id, num_rollout_rows
    )
    with decoder_class.for_rollout(model, spec, request.episode_tokens) as decoder:
        decoder.begin_part(request.prompts, prompt_cache, first_row)
        steps = decoder.run(request.sampling.max_completion_length)
        samples = decoder.read_samples(prompt_length, steps)
        del decoder  # while this variable exists, the memory of the decoder cannot be freed
    return samples
