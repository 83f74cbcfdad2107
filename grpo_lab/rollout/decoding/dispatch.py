"""The choice of a sampler for a model and a device, and of how many prompts it samples at a time.

Any model can be sampled by transformers' `generate` (`generate.py`). The families of `fast_paths.py` are sampled by
our own loop (`decoder.py`), which has a form for a CPU (`cpu_decoder.py`) and a form for a GPU (`graph_decoder.py`).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_lab.base.checks import RunError
from grpo_lab.base.random_state import random_state, set_random_state
from grpo_lab.logprobs import completion_mask
from grpo_lab.rollout.decoding.cpu_decoder import CpuDecoder
from grpo_lab.rollout.decoding.decoder import Decoder, DecoderSpec
from grpo_lab.rollout.decoding.generate import sample_by_generate
from grpo_lab.rollout.decoding.gpu_memory import free_gpu_bytes, parts_that_fit
from grpo_lab.rollout.decoding.graph_decoder import GraphDecoder, fixed_columns, kept_decoder, reusable_bytes
from grpo_lab.rollout.decoding.sampling_params import NOT_FINITE, Samples, SamplingRequest
from grpo_lab.rollout.forward.fast_paths import is_fast
from grpo_lab.rollout.forward.packing import packed_prompts
from grpo_lab.rollout.inputs import Prompts

DECODERS = {"cpu": CpuDecoder, "cuda": GraphDecoder}  # device type to decoder; other types take `Decoder`


def sample_sequences(model, request: SamplingRequest) -> Samples:
    """Draw the completions of a request by the fastest sampler that is right for the model and its device."""
    if request.by_generate or not is_fast(model):
        return sample_by_generate(model, request)
    num_parts = 1
    if request.turns is None:
        num_prompts, prompt_length = request.prompts.ids.shape
        columns = prompt_length + request.max_completion_length
        free_bytes = free_gpu_bytes(model.device) + reusable_bytes()
        num_parts = parts_that_fit(model, num_prompts, request.num_generations, columns, free_bytes)
    return _sample_part(model, request) if num_parts == 1 else _sample_in_parts(model, request, num_parts)


def _sample_in_parts(model, request: SamplingRequest, num_parts: int) -> Samples:
    """Draw the completions in `num_parts` parts; they are the same as if all were drawn at once.

    For this, each part begins with the same random state and draws the random numbers of all rows. The random state
    after the rollout is the one after the part that took the most steps.
    """
    samples: list[Samples] = []
    end_states = []
    start_state = random_state(model.device)
    for part_index, part_request in enumerate(request.chunks(num_parts)):
        set_random_state(model.device, start_state)
        first_row = part_index * request.num_rows // num_parts
        samples.append(_sample_part(model, part_request, rollout_rows=request.num_rows, first_row=first_row))
        end_states.append(random_state(model.device))
    steps = [part.steps for part in samples]
    set_random_state(model.device, end_states[steps.index(max(steps))])
    return Samples(
        _stacked([part.sequences for part in samples], request.sampling.pad_token_id),
        _stacked([part.logp for part in samples], 0),
        _stacked([part.entropy for part in samples], 0),
        max(steps),
    )


def _stacked(parts: list[Tensor], padding: int) -> Tensor:
    """Join the rows of all parts into one tensor, padded on the right to the longest part."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat([pad(part, (0, longest - part.shape[1]), value=padding) for part in parts])


def _sample_part(model, request: SamplingRequest, rollout_rows: int | None = None, first_row: int = 0) -> Samples:
    """Draw the completions of a request that is a whole rollout, or a part of one.

    Args:
        model, request: The arguments of `sample_sequences`.
        rollout_rows: Number of rows of the whole rollout, if the request is a part of it; None if it is all of it.
        first_row: Index of the first row of the request in the rollout.
    """
    num_prompts, prompt_length = request.prompts.ids.shape
    # One forward pass reads all tokens of the prompts but the last. If every prompt is one token long, there are none.
    all_but_last = Prompts(request.prompts.ids[:, :-1], request.prompts.mask[:, :-1])
    prompt_cache = packed_prompts(model, all_but_last) if all_but_last.mask.any() else None
    decoder_class = DECODERS.get(model.device.type, Decoder)
    is_captured = decoder_class is GraphDecoder
    columns = prompt_length + request.max_completion_length
    if is_captured:
        columns = fixed_columns(prompt_length, request.max_completion_length)
    spec = DecoderSpec(num_prompts, request.num_generations, columns, request.sampling, rollout_rows)
    if not is_captured:
        decoder = decoder_class(model, spec, request.turns)
        decoder.load(request.prompts, prompt_cache, first_row)
        return _run_decoder(decoder, prompt_length, request.max_completion_length)
    with kept_decoder(model, spec, request.turns) as decoder:
        decoder.load(request.prompts, prompt_cache, first_row)
        samples = _run_decoder(decoder, prompt_length, request.max_completion_length)
        copies = Samples(samples.sequences.clone(), samples.logp.clone(), samples.entropy.clone(), samples.steps)
        del decoder, samples  # while they exist, the memory of the decoder cannot be freed
    return copies


def _run_decoder(decoder: Decoder, prompt_length: int, max_steps: int) -> Samples:
    """Run a decoder that has loaded its prompts; return views of its tensors up to the last token of any row.

    Args:
        decoder: A decoder after its `load`.
        prompt_length: L, number of columns of the prompts.
        max_steps: Maximum number of token steps.

    Raises:
        RunError: if the log-probability of a token of the policy is not finite.
    """
    steps = decoder.run(max_steps)
    if decoder.turns is None:
        completions = decoder.sequences[:, prompt_length : prompt_length + steps]
        is_token = completion_mask(completions, list(decoder.sampling.eos_token_ids))
        end_column = prompt_length + int(is_token.any(0).sum())
        checked_logp = decoder.logp[:, prompt_length:end_column]
    else:
        end_column = prompt_length + steps
        _, _, is_policy, _ = decoder.turns.tensors(0, decoder.logp.device)
        # The policy may give a token of the environment any probability, even zero.
        checked_logp = decoder.logp[:, prompt_length:end_column][is_policy]
    if not checked_logp.isfinite().all():
        raise RunError(NOT_FINITE)
    return Samples(
        decoder.sequences[:, :end_column],
        decoder.logp[:, prompt_length:end_column],
        decoder.entropy[:, prompt_length:end_column],
        steps,
    )
