"""Decoding in fixed memory: one token step in tensors that never move, which a GPU captures once and repeats.

A token step of a 24-layer model is a thousand small kernels: a millisecond or two of a GPU's work, 20 to 30 for Python
to ask for them. So here a step reads and writes only tensors of fixed size and address, asks the host for nothing, and
can be recorded as a CUDA graph: from then on a single call repeats all of it.

The attention reads all columns of the cache and masks those that are not written yet: lengths must not change. Tokens
are drawn by an exponential race instead of `torch.multinomial`, which waits for the host. Rows that have ended go on
drawing, unread: the weights are read either way, but so are the columns of such a row.

A capture takes longer than many short answers. Within a run (`reuse_graphs`) it serves the rollouts that come after it,
as long as they have the same sizes and the GPU has room for it beside everything else.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.base.display import GIB
from grpo_lab.rollout.decoding.decoder import Decoder
from grpo_lab.rollout.decoding.sampling_params import SamplingParams
from grpo_lab.rollout.decoding.turns import Turns
from grpo_lab.rollout.forward.attention import attention_dtype
from grpo_lab.rollout.forward.fast_paths import head_dim

CAPACITY_STEP = 64  # the columns of a GPU's cache are a multiple of this: then its kernels take a mask without a copy
CHECK_EVERY = 16  # steps between two questions whether all rows have ended; each makes the host wait for the GPU
WARM_UP = 3  # steps before the capture: libraries set themselves up at first use, which no graph can hold
FREE_MEMORY_FACTOR = 4  # a graph is reused if so many times its memory are free beside the most that the run has taken
CAPTURED_LOGITS = 6  # float32 tensors of their size (softmax, noise, ...) that stay reserved for a captured step


class GraphDecoder(Decoder):
    """Decoding on an NVIDIA GPU: the step is captured as a CUDA graph, so no shape or branch depends on a value.

    Its arguments are those of `Decoder`.
    """

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.replay = _capture(self.step, self.model.device)

    def run(self, max_steps: int) -> int:
        check_every = CHECK_EVERY if self.turns is None else 1
        for steps in range(1, max_steps + 1):
            self.replay()
            self.take_turns()
            if steps % check_every == 0 and self.done.all():
                return steps
        return max_steps

    def step(self) -> Int[Tensor, " B"]:
        next_token = super().step()
        self.token.copy_(next_token.unsqueeze(1))
        return next_token

    def draw(self, log_pi: Float[Tensor, "B V"], pi: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
        noise = log_pi.new_empty(self.rollout_rows, log_pi.shape[1]).exponential_()
        if self.rows_in_rollout is not None:
            noise = noise.index_select(0, self.rows_in_rollout)
        return exponential_race(log_pi, noise)

    @property
    def nbytes(self) -> int:
        """The bytes of a GPU that stay taken between two rollouts; the weights are the model's."""
        own = [*self.cache.keys, *self.cache.values, *self.autocast_weights.values(), self.logp, self.sequences]
        logits = 4 * len(self.rows) * self.model.config.vocab_size
        return sum(tensor.nbytes for tensor in own) + CAPTURED_LOGITS * logits


class CapturedGraph:
    """The decoder of the last rollout, for the next rollout, if that has the same sizes and reads the same weights."""

    def __init__(self):
        self.key = None
        self.decoder = None
        self.rollouts = 0

    def decoder_for(
        self,
        model,
        num_prompts: int,
        num_generations: int,
        columns: int,
        sampling: SamplingParams,
        turns: Turns | None,
        rollout_rows: int | None,
    ) -> GraphDecoder:
        arguments = (num_prompts, num_generations, columns, sampling)
        addresses = tuple(parameter.data_ptr() for parameter in model.parameters())
        precision = (attention_dtype(model), torch.is_autocast_enabled(model.device.type), model.dtype)
        key = (id(model), arguments, turns is None, rollout_rows, precision, addresses)
        if key != self.key:
            self.drop()
            self.decoder = GraphDecoder(model, *arguments, turns=turns, rollout_rows=rollout_rows)
            self.key = key
        else:
            self.decoder.reuse(turns)
        return self.decoder

    def end_rollout(self) -> None:
        """Drop the graph unless it leaves room for the update.

        It is always dropped after the first rollout, when the peak of an update is not known yet.
        """
        self.rollouts += 1
        if self.rollouts == 1 or not has_room(self.decoder.model.device, self.decoder.nbytes):
            self.drop()

    def drop(self) -> None:
        if self.decoder is not None:
            device, self.key, self.decoder = self.decoder.model.device, None, None
            if device.type == "cuda":
                torch.cuda.empty_cache()  # what a graph has reserved can be used for nothing else


def parts_that_fit(model, num_prompts: int, num_generations: int, columns: int) -> int:
    """Number of equal parts into which a rollout is cut so that each fits into free GPU memory."""
    device = model.device
    config = model.config
    if device.type != "cuda":
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) - GIB
    free += _open_graphs[-1].decoder.nbytes if _open_graphs and _open_graphs[-1].decoder is not None else 0
    logits_bytes = 4 * config.vocab_size
    numbers_per_column = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(config)
    row_bytes = columns * numbers_per_column * attention_dtype(model).itemsize + CAPTURED_LOGITS * logits_bytes
    return fewest_parts(num_prompts, num_generations, row_bytes, logits_bytes, free)


def fewest_parts(num_prompts: int, num_generations: int, row_bytes: int, noise_bytes: int, free: int) -> int:
    """The least divisor of P that leaves parts within `free` bytes.

    row_bytes: of each row of a part. noise_bytes: of each row of the rollout, whose noise every part of several draws.
    """
    divisors = [parts for parts in range(1, num_prompts + 1) if num_prompts % parts == 0]
    rows = num_prompts * num_generations
    return next(
        (parts for parts in divisors if rows // parts * row_bytes + rows * noise_bytes * (parts > 1) <= free),
        num_prompts,
    )


def has_room(device: torch.device, size: int) -> bool:
    """True if so many bytes can stay on a GPU beside the most that torch has reserved on it so far, with a margin."""
    needed = torch.cuda.max_memory_reserved(device) + FREE_MEMORY_FACTOR * size + GIB
    return needed <= torch.cuda.mem_get_info(device)[1]


_open_graphs: list[CapturedGraph] = []  # of the runs that are open, the innermost last


@contextmanager
def reuse_graphs() -> Iterator[None]:
    """Let the rollouts inside this context share a captured step."""
    _open_graphs.append(CapturedGraph())
    try:
        yield
    finally:
        _open_graphs.pop().drop()


@contextmanager
def graph_decoder(*arguments) -> Iterator[GraphDecoder]:
    """The decoder of a rollout: that of the rollout before, or a new one. What it returns is to be copied.

    arguments: all those of `GraphDecoder`.
    """
    graph = _open_graphs[-1] if _open_graphs else CapturedGraph()
    try:
        yield graph.decoder_for(*arguments)
    except BaseException:
        graph.drop()
        raise
    graph.end_rollout()


def exponential_race(log_pi: Float[Tensor, "B V"], noise: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
    r"""Draw one token a row from its distribution, as the winner of a race that the host need not watch.

    Give every token v a clock that rings after a time E_v / \pi_v. The clock is exponential with rate \pi_v, and the
    first of independent exponential clocks is that of v with probability \pi_v over the sum of all rates, which is
    \pi_v itself. The first to ring has the largest

    s_{b,v} = \frac{\pi_{b,v}}{E_{b,v}}, \quad E_{b,v} \sim \mathrm{Exp}(1) \tag{8.21}
    y_b = \operatorname{arg\,max}_v s_{b,v}                                  \tag{8.22}

    Args:
        log_pi: log-probabilities, shape (B, V); minus infinity at tokens that cannot come.
        noise: E > 0, one exponential number for each of them, such as `torch.empty_like(log_pi).exponential_()`.

    Returns:
        Token ids, shape (B,).

    Source: Maddison, Tarlow and Minka (2014), "A* sampling", section 2; the race is what `torch.multinomial` runs, too.
    """
    s = log_pi.exp() / noise  # B V (8.21)
    token = s.argmax(-1)  # B (8.22)
    return token


def fixed_columns(prompt_length: int, completion_length: int) -> int:
    r"""The columns of a cache that must not move: those that may be needed, rounded up to a multiple of 64.

    S = 64 \left\lceil \frac{L + T}{64} \right\rceil \tag{8.19}
    """
    return CAPACITY_STEP * -(-(prompt_length + completion_length) // CAPACITY_STEP)  # scalar (8.19)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures: cuBLAS keeps a workspace for each that it has seen, 32 MiB on a large GPU."""
    return torch.cuda.Stream(device)


def _capture(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Record what the step asks of the GPU; the result repeats it, on whatever its memory holds by then.

    The random numbers of warm-up and capture are given back, so that a run that captures again draws the same tokens.
    """
    stream = _capture_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.random.fork_rng(devices=[device]):
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as a tracker's or a reward's, may go on using the GPU meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
    return graph.replay
