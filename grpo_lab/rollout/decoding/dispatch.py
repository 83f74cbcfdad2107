"""The choice of a sampler for a model and a device, and of how many prompts it takes at a time.

transformers' `generate` is for any model (`generate.py`). For the families of `fast_paths.py` there is a loop of ours
(`decoder.py`), which a GPU repeats as a CUDA graph (`static.py`).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from grpo_lab.base.checks import RunError
from grpo_lab.logprobs import completion_mask
from grpo_lab.rollout.decoding.decoder import CpuDecoder, Decoder
from grpo_lab.rollout.decoding.generate import sample_by_generate
from grpo_lab.rollout.decoding.sampling_params import NOT_FINITE, SamplingRequest
from grpo_lab.rollout.decoding.static import GraphDecoder, fixed_columns, graph_decoder, parts_that_fit
from grpo_lab.rollout.forward.fast_paths import is_fast
from grpo_lab.rollout.forward.packing import packed_prompts
from grpo_lab.rollout.inputs import Prompts

DECODERS = {"cpu": CpuDecoder, "cuda": GraphDecoder}  # by the type of a device; `Decoder` on any other


class Samples(NamedTuple):
    """The completions that a decoder of ours has drawn, and how many token steps that took."""

    sequences: Int[Tensor, "B S"]  # prompt and completion, padded after the end
    logp: Float[Tensor, "B T"]  # undefined after the end
    entropy: Float[Tensor, "B T"]
    steps: int


def sample_sequences(
    model, request: SamplingRequest, cache_implementation: str | None = None
) -> tuple[Int[Tensor, "B S"], Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Draw token ids in the way that is right for the model and quick on its device.

    Returns: prompt and completion, padded after the end; log-probability and entropy, undefined after the end.
    """
    if cache_implementation == "dynamic" or not is_fast(model):
        return sample_by_generate(model, request)
    num_parts = 1
    if request.turns is None:
        num_prompts, prompt_length = request.prompts.ids.shape
        num_parts = parts_that_fit(
            model, num_prompts, request.num_generations, prompt_length + request.max_completion_length
        )
    samples = _sample_part(model, request) if num_parts == 1 else _sample_in_parts(model, request, num_parts)
    return samples.sequences, samples.logp, samples.entropy


def _sample_in_parts(model, request: SamplingRequest, num_parts: int) -> Samples:
    """Draw the completions part by part; they are the same as if all were drawn at once.

    So each part begins with the same random state and draws the numbers of all rows; and the state after the rollout is
    that of the part that took the most steps.
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
    """The parts below one another, padded on the right to the longest."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat([pad(part, (0, longest - part.shape[1]), value=padding) for part in parts])


def random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _sample_part(model, request: SamplingRequest, rollout_rows: int | None = None, first_row: int = 0) -> Samples:
    """Draw the completions of these prompts: all of a rollout, or some of them.

    rollout_rows: rows of the whole rollout, where these are a part of it.
    first_row: index of the part's first row in it.
    """
    num_prompts, prompt_length = request.prompts.ids.shape
    # All tokens of the prompts but the last are read at once; there are none where every prompt is one token long.
    read_at_once = Prompts(request.prompts.ids[:, :-1], request.prompts.mask[:, :-1])
    prefix = packed_prompts(model, read_at_once) if read_at_once.mask.any() else None
    decoder_class = DECODERS.get(model.device.type, Decoder)
    is_captured = decoder_class is GraphDecoder
    columns = prompt_length + request.max_completion_length
    if is_captured:
        columns = fixed_columns(prompt_length, request.max_completion_length)
    arguments = (model, num_prompts, request.num_generations, columns, request.sampling, request.turns, rollout_rows)
    if not is_captured:
        decoder = decoder_class(*arguments)
        decoder.load(request.prompts, prefix, first_row)
        return _run_decoder(decoder, prompt_length, request.max_completion_length)
    with graph_decoder(*arguments) as decoder:
        decoder.load(request.prompts, prefix, first_row)
        samples = _run_decoder(decoder, prompt_length, request.max_completion_length)
        copies = Samples(samples.sequences.clone(), samples.logp.clone(), samples.entropy.clone(), samples.steps)
        del decoder, samples  # or its memory could not be given back
    return copies


def _run_decoder(decoder: Decoder, prompt_length: int, max_steps: int) -> Samples:
    """Run a decoder that has loaded its prompts; returns views of its tensors up to the last token of any row.

    prompt_length: columns of the prompts.
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
        # How probable the tokens of the environment are does not matter.
        checked_logp = decoder.logp[:, prompt_length:end_column][is_policy]
    if not checked_logp.isfinite().all():
        raise RunError(NOT_FINITE)
    return Samples(
        decoder.sequences[:, :end_column],
        decoder.logp[:, prompt_length:end_column],
        decoder.entropy[:, prompt_length:end_column],
        steps,
    )
