"""Decoding on an NVIDIA GPU: one token step in fixed memory, captured as a CUDA graph and repeated.

A token step of a model with many layers is a long series of small kernels, which Python launches more slowly than the
GPU computes them. So here a step reads and writes only tensors of fixed size and address, and needs no value on the
host. Such a step can be captured as a CUDA graph, which a single call repeats.

Attention reads all columns of the cache, since lengths must not change; a mask hides the columns that are not written
yet. Tokens are drawn by an exponential race instead of `torch.multinomial`, which synchronises host and GPU. Rows that
have ended go on drawing, and nobody reads what they draw. This costs little: the weights are read in any case, and only
the cache of such a row is read in addition.

A capture takes longer than sampling many short answers. Within a run (`shared_decoder`), the decoder with its graph is
kept for later rollouts, as long as they have the same sizes and the GPU has room for it in addition to everything else.
A rollout that does not fit into the memory is drawn in parts (`parts_that_fit`).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.base.display import GIB
from grpo_lab.rollout.decoding.decoder import Decoder, DecoderSpec
from grpo_lab.rollout.decoding.sampling_request import Samples, SamplingRequest
from grpo_lab.rollout.forward.attention import attention_dtype
from grpo_lab.rollout.model import head_dim

COLUMN_MULTIPLE = 64  # the cache has a multiple of this number of columns: then kernels take a mask without a copy
STEPS_PER_CHECK = 16  # steps between two checks whether all rows have ended; for each check the host waits for the GPU
WARM_UP_STEPS = 3  # steps before the capture: libraries initialise themselves at first use, which no graph can record
CAPTURED_LOGITS = 6  # float32 tensors of the size of the logits (softmax, noise, ...) that a captured step reserves
FREE_MEMORY_FACTOR = 4  # a decoder is kept if this many times its size is free in addition to the run's peak memory


class GraphDecoder(Decoder):
    """The decoder for an NVIDIA GPU. Its step is captured as a CUDA graph, so no shape or branch depends on a value."""

    def __init__(self, model, spec: DecoderSpec):
        super().__init__(model, spec)
        self.replay = _capture(self.draw_next_tokens, self.model.device)

    @classmethod
    def columns_for(cls, prompt_length: int, completion_length: int) -> int:
        return fixed_columns(prompt_length, completion_length)

    @classmethod
    @contextmanager
    def for_request(cls, model, request: SamplingRequest) -> Iterator["GraphDecoder"]:
        """Provide a decoder for one request: the last decoder if it fits, else a new one.

        The next request overwrites the tensors of the decoder, so `read_samples` copies them. Outside `shared_decoder`
        the decoder is dropped at the end.
        """
        slot = _decoder_slots[-1] if _decoder_slots else DecoderSlot()
        try:
            yield slot.decoder_for(model, cls.spec_for(request))
        except BaseException:
            slot.drop()
            raise
        if not _decoder_slots:
            slot.drop()

    @classmethod
    def end_rollout(cls) -> None:
        if _decoder_slots:
            _decoder_slots[-1].end_rollout()

    def draw_completions(self, max_new_tokens: int) -> int:
        check_every = 1 if self.spec.has_environment else STEPS_PER_CHECK
        for num_token_steps in range(1, max_new_tokens + 1):
            self.replay()
            self.update_episodes()
            if num_token_steps % check_every == 0 and self.active_rows.done.all():
                return num_token_steps
        return max_new_tokens

    def draw_from(self, log_pi: Float[Tensor, "B V"], pi: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
        noise = log_pi.new_empty(self.spec.num_random_rows, log_pi.shape[1]).exponential_()
        if self.first_row is not None:
            noise = noise.index_select(0, self.active_rows.row_index + self.first_row)
        return exponential_race(log_pi, noise)

    def read_samples(self, prompt_length: int, num_token_steps: int) -> Samples:
        """Return copies of the drawn completions, since the next request overwrites the decoder's tensors."""
        samples = super().read_samples(prompt_length, num_token_steps)
        return Samples(
            samples.sequences.clone(), samples.logp.clone(), samples.entropy.clone(), samples.num_token_steps
        )

    @property
    def nbytes(self) -> int:
        """GPU memory in bytes that the decoder keeps between two rollouts, without the weights of the model."""
        kept_tensors = [
            *self.cache.keys,
            *self.cache.values,
            *self.autocast_weights.values(),
            self.logp,
            self.entropy,
            self.sequences,
            self.prefixes.readable_columns,
        ]
        spec = self.spec
        noise_rows = spec.num_random_rows if spec.is_part else 0  # a part draws the noise of all rows
        logits_bytes = 4 * self.model.config.vocab_size * (CAPTURED_LOGITS * spec.num_rows + noise_rows)
        return sum(tensor.nbytes for tensor in kept_tensors) + logits_bytes


class DecoderSlot:
    """Keeps the last decoder for the next request, if that has the same spec and the same weight tensors."""

    def __init__(self):
        self.key: tuple | None = None
        self.decoder: GraphDecoder | None = None
        self.num_rollouts = 0

    def decoder_for(self, model, spec: DecoderSpec) -> GraphDecoder:
        """Return the kept decoder if it fits these arguments of `GraphDecoder`, else a new one."""
        addresses = tuple(parameter.data_ptr() for parameter in model.parameters())
        precision = (attention_dtype(model), torch.is_autocast_enabled(model.device.type), model.dtype)
        key = (id(model), spec, precision, addresses)
        if self.decoder is None or key != self.key:
            self.drop()
            self.decoder = GraphDecoder(model, spec)
            self.key = key
        else:
            self.decoder.refresh_autocast_weights()
        return self.decoder

    def end_rollout(self) -> None:
        """Drop the decoder unless it leaves room for the update.

        After the first rollout it is always dropped: the peak memory of an update is not known yet.
        """
        self.num_rollouts += 1
        if self.decoder is None:
            return
        if self.num_rollouts == 1 or not has_room(self.decoder.model.device, self.decoder.nbytes):
            self.drop()

    def drop(self) -> None:
        """Free the kept decoder and the memory that its graph has reserved."""
        if self.decoder is not None:
            device, self.key, self.decoder = self.decoder.model.device, None, None
            if device.type == "cuda":
                torch.cuda.empty_cache()  # memory that a graph has reserved is of no use to other tensors


_decoder_slots: list[DecoderSlot] = []  # one per open `shared_decoder`, the innermost last


@contextmanager
def shared_decoder() -> Iterator[None]:
    """Share one decoder, with its captured step, among the rollouts inside this context."""
    _decoder_slots.append(DecoderSlot())
    try:
        yield
    finally:
        _decoder_slots.pop().drop()


def reusable_bytes() -> int:
    """Return the bytes of the decoder that the innermost open `shared_decoder` keeps; 0 if there is none.

    The next rollout reuses or frees them.
    """
    decoder = _decoder_slots[-1].decoder if _decoder_slots else None
    return 0 if decoder is None else decoder.nbytes


def exponential_race(log_pi: Float[Tensor, "B V"], noise: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
    r"""Draw one token per row from its distribution by an exponential race, without waiting for the host.

    Give every token v a clock that rings after the time E_v / \pi_v, which is exponential with rate \pi_v. Among
    independent exponential clocks, the clock of v rings first with probability \pi_v over the sum of all rates. The sum
    of the rates is 1, so this is \pi_v itself. The first clock to ring has the largest

    s_{b,v} = \frac{\pi_{b,v}}{E_{b,v}}, \quad E_{b,v} \sim \mathrm{Exp}(1) \tag{8.21}
    y_b = \operatorname{arg\,max}_v s_{b,v}                                  \tag{8.22}

    Args:
        log_pi: log-probabilities, shape (B, V); minus infinity at tokens that are excluded.
        noise: E > 0, one exponential random number for each log-probability, such as
            `torch.empty_like(log_pi).exponential_()`.

    Returns:
        Token ids, shape (B,).

    Source: Maddison, Tarlow and Minka (2014), "A* sampling", section 2; `torch.multinomial` runs the same race.
    """
    s = log_pi.exp() / noise  # B V (8.21)
    token = s.argmax(-1)  # B (8.22)
    return token


def fixed_columns(prompt_length: int, completion_length: int) -> int:
    r"""Round the number of columns that a cache in fixed memory may need up to a multiple of 64.

    S = 64 \left\lceil \frac{L + T}{64} \right\rceil \tag{8.19}
    """
    return COLUMN_MULTIPLE * -(-(prompt_length + completion_length) // COLUMN_MULTIPLE)  # scalar (8.19)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all captures; there is only one, since cuBLAS keeps 32 MiB per stream on a large GPU."""
    return torch.cuda.Stream(device)


def _capture(step: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Capture a step as a CUDA graph; return a function that repeats it with the current contents of its memory.

    The random state is restored after warm-up and capture, so that a run that captures again draws the same tokens.
    """
    stream = _capture_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.random.fork_rng(devices=[device]):
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads, such as a tracker's or a reward's, may use the GPU during the capture.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
    return graph.replay


def free_gpu_bytes(device: torch.device) -> float:
    """Return the bytes of a GPU that new tensors can use, less a margin of 1 GiB; infinity for another device.

    These are the bytes that no process uses, and the bytes that torch has reserved and does not use.
    """
    if device.type != "cuda":
        return math.inf
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return free_bytes + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) - GIB


def parts_that_fit(model, num_prompts: int, num_generations: int, num_columns: int, free_bytes: float) -> int:
    """Return the smallest number of equal parts of a rollout such that a captured step of each part fits into memory.

    Args:
        model: The policy, a model of the fast paths.
        num_prompts, num_generations: P and G.
        num_columns: Number of columns of the cache.
        free_bytes: Bytes of free memory; infinity if memory sets no limit.
    """
    config = model.config
    logits_bytes = 4 * config.vocab_size
    numbers_per_column = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(config)
    row_bytes = num_columns * numbers_per_column * attention_dtype(model).itemsize + CAPTURED_LOGITS * logits_bytes
    return fewest_parts(num_prompts, num_generations, row_bytes, logits_bytes, free_bytes)


def fewest_parts(num_prompts: int, num_generations: int, row_bytes: int, noise_bytes: int, free_bytes: float) -> int:
    """Return the smallest number of equal parts of a rollout such that each part fits into free memory; it divides P.

    Args:
        num_prompts, num_generations: P and G.
        row_bytes: Bytes that a row of a part needs.
        noise_bytes: Bytes of the random numbers of one row. If there are several parts, each part draws the random
            numbers of all rows of the rollout.
        free_bytes: Bytes of free memory; infinity if memory sets no limit.

    Returns:
        The number of parts; P if even parts of one prompt do not fit.
    """
    num_rows = num_prompts * num_generations
    for num_parts in range(1, num_prompts + 1):
        if num_prompts % num_parts == 0:
            all_noise_bytes = num_rows * noise_bytes if num_parts > 1 else 0
            if num_rows // num_parts * row_bytes + all_noise_bytes <= free_bytes:
                return num_parts
    return num_prompts


def has_room(device: torch.device, num_bytes: int) -> bool:
    """Return True if a GPU has room for so many bytes in addition to torch's peak memory so far, with a margin."""
    needed_bytes = torch.cuda.max_memory_reserved(device) + FREE_MEMORY_FACTOR * num_bytes + GIB
    _, total_bytes = torch.cuda.mem_get_info(device)
    return needed_bytes <= total_bytes
