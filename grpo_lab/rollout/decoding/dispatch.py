"""The choice of a sampler for a model and a device, and of how many prompts it samples at a time.

Any model can be sampled by transformers' `generate` (`generate.py`). The families of `fast_paths.py` are sampled by
our own loop (`decoder.py`), which has a form for a CPU (`cpu_decoder.py`) and a form for a GPU (`graph_decoder.py`).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_lab.base.random_state import random_state, set_random_state
from grpo_lab.rollout.decoding.cpu_decoder import CpuDecoder
from grpo_lab.rollout.decoding.decoder import Decoder
from grpo_lab.rollout.decoding.generate import sample_by_generate
from grpo_lab.rollout.decoding.gpu_memory import free_gpu_bytes, parts_that_fit
from grpo_lab.rollout.decoding.graph_decoder import GraphDecoder, reusable_bytes
from grpo_lab.rollout.decoding.sampling_request import Samples, SamplingRequest
from grpo_lab.rollout.forward.packing import packed_prompts
from grpo_lab.rollout.model import has_fast_path
from grpo_lab.rollout.rollout import EncodedPrompts

DECODERS = {"cpu": CpuDecoder, "cuda": GraphDecoder}  # device type to decoder; other types take `Decoder`


def sample_sequences(model, request: SamplingRequest) -> Samples:
    """Draw the completions of a request by the fastest sampler that is right for the model and its device."""
    if request.sampling.cache_implementation == "dynamic" or not has_fast_path(model):
        return sample_by_generate(model, request)
    decoder_class = DECODERS.get(model.device.type, Decoder)
    num_parts = 1
    if request.episode_tokens is None:  # one object has the tokens of all episodes, so these are drawn together
        num_columns = decoder_class.spec_for(request).num_columns
        free_bytes = free_gpu_bytes(model.device) + reusable_bytes()
        num_prompts, num_generations = len(request.prompts.ids), request.sampling.num_generations
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
        decoder.begin(request.prompts, prompt_cache, request.first_row)
        steps = decoder.run(request.sampling.max_completion_length)
        samples = decoder.read_samples(request.prompts.ids.shape[1], steps)
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
    steps = [part.steps for part in samples]
    set_random_state(model.device, end_states[steps.index(max(steps))])
    return Samples(
        _padded_rows([part.sequences for part in samples], request.pad_token_id),
        _padded_rows([part.logp for part in samples], 0),
        _padded_rows([part.entropy for part in samples], 0),
        max(steps),
    )


def _padded_rows(parts: list[Tensor], padding: int) -> Tensor:
    """Join the rows of all parts into one tensor, padded on the right to the longest part."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat([pad(part, (0, longest - part.shape[1]), value=padding) for part in parts])
