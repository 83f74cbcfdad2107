"""Decoding in fixed memory: one token step in tensors that never move, which a card captures once and repeats.

A token step of a 24-layer model is a thousand small kernels. A card does their work in a millisecond or two, but Python
needs 20 to 30 ms to ask for them one by one. So here a step reads and writes only tensors of fixed size and address,
asks the host for nothing, and can be recorded as a CUDA graph: from then on a single call repeats all of it.

The attention reads all columns of the cache and masks those that are not written yet: lengths must not change. Tokens
are drawn by an exponential race instead of `torch.multinomial`, which waits for the host. Rows that have ended go on
drawing, unread, until all have: a step of 64 rows takes hardly longer than one of 32, since the weights are read either
way.

On a processor nothing is captured, and both are otherwise: a step of 32 rows takes half as long as one of 64, so rows
that have ended leave the batch; and where there are many tokens, a random number for each would take as long as half
the layers, so one a row is drawn.
"""

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from torch.func import functional_call

from grpo_lab.logprobs import completion_mask
from grpo_lab.rollout.attention import arithmetic
from grpo_lab.rollout.cache import SlotCache, check_static, decoding, half_copies
from grpo_lab.rollout.dynamic import NOT_FINITE, Sampling, entropy_of
from grpo_lab.rollout.prompts import Prompts

CAPACITY_STEP = 64  # the columns of a cache are a multiple of this: prompts of other lengths find the same graph again
CHECK_EVERY = 16  # steps between two questions whether all rows have ended; each makes the host wait for the card
WARM_UP = 3  # steps before the capture: libraries set themselves up at first use, which no graph can hold
CAPTURED_LOGITS = 6  # float32 tensors of their size (softmax, noise, ...) that stay reserved for a captured step
KEPT_SHARE = 1 / 20  # of a card's memory: what a captured step may keep from one rollout to the next
MANY_TOKENS = 2**15  # in a vocabulary; from here on a processor draws one random number a row
STILL_WRITING = 3 / 4  # with fewer rows than this share the others leave the batch; to copy the cache costs time, too


def exponential_race(log_pi: Float[Tensor, "B V"], noise: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
    r"""Draw one token a row from its distribution, as the winner of a race that the host need not watch.

    Give every token v a clock that rings after a time E_v / \pi_v. The clock is exponential with rate \pi_v, and the
    first of independent exponential clocks is that of v with probability \pi_v over the sum of all rates, which is
    \pi_v itself. The first to ring has the largest

    s_{b,v} = \frac{\pi_{b,v}}{E_{b,v}}, \quad E_{b,v} \sim \mathrm{Exp}(1) \tag{8.30}
    y_b = \operatorname{arg\,max}_v s_{b,v}                                  \tag{8.31}

    Its logarithm, \log \pi_v - \log E_v, is the "Gumbel trick": -\log E_v has Gumbel's distribution.

    Args:
        log_pi: log-probabilities, shape (B, V); minus infinity at tokens that cannot come.
        noise: E, one exponential number for each of them, such as `torch.empty_like(log_pi).exponential_()`.

    Returns:
        Token ids, shape (B,).

    Source: Maddison, Tarlow and Minka (2014), "A* sampling", section 2; the race is what `torch.multinomial` runs, too.
    """
    score = log_pi.exp() / noise  # B V (8.30)
    token = score.argmax(-1)  # B (8.31)
    return token


def inverse_cdf(log_pi: Float[Tensor, "B V"], u: Float64[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Draw one token a row with one random number a row: the first v whose cumulative probability is above it.

    Args:
        log_pi: log-probabilities, shape (B, V); minus infinity at tokens that cannot come, and never do.
        u: uniform in [0, 1), shape (B,), float64: with the 24 bits of a float32 rare tokens would come too seldom.

    Returns:
        Token ids, shape (B,).

    Raises:
        RuntimeError: if a row is no distribution, because it holds NaN.

    Source: Devroye (1986), "Non-Uniform Random Variate Generation", section III.2.
    """
    cdf = log_pi.exp().double().cumsum_(-1)
    total = cdf[:, -1]  # 1 up to rounding
    if not total.isfinite().all():
        raise RuntimeError(NOT_FINITE)
    point = torch.minimum(u * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cdf, point[:, None], right=True)[:, 0]


def sample_static(
    model, prompts: Prompts, max_completion_length: int, sampling: Sampling
) -> tuple[Int[Tensor, "B S"], Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Draw with a step of fixed memory; captured on a card, plain elsewhere. Arguments and result as `sample_dynamic`.

    Raises:
        ValueError: for a model whose step depends on the length (sliding windows, rotary embeddings that adapt) or is
            of another kind than this cache knows.
    """
    check_static(model)
    start = prompts.ids.shape[1]
    rows, columns = len(prompts.ids) * prompts.num_generations, start + max_completion_length
    if _can_capture(model.device):
        columns = -(-columns // CAPACITY_STEP) * CAPACITY_STEP
    decoder = _decoder_for(model, rows, columns, sampling)
    decoder.load(model, prompts.ids, prompts.mask, prompts.prefix, prompts.num_generations)
    taken = decoder.run(model, max_completion_length)
    sequences, logp, entropy = decoder.drawn()
    completions = sequences[:, start : start + taken]
    end = start + int(completion_mask(completions, list(sampling.eos_token_ids)).any(0).sum())
    # Clones, because the next rollout writes into the same memory.
    return sequences[:, :end].clone(), logp[:, start:end].clone(), entropy[:, start:end].clone()


class Decoder:
    """A token step for B rows, with all that it reads and writes: tensors that stay where they are for good.

    model: gives the shapes. The step takes it again, so that nothing in here keeps it alive.
    capacity: columns for prompt and completion together.
    """

    def __init__(self, model, rows: int, capacity: int, sampling: Sampling):
        device = model.device
        self.sampling = sampling
        self.ends = torch.tensor(sampling.eos_token_ids, device=device)
        self.slot = torch.zeros(1, dtype=torch.long, device=device)  # the column that is read; the next one is written
        self.position = torch.zeros(rows, 1, dtype=torch.long, device=device)  # of the token that is read
        self.last_of_prompt = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.sequences = torch.zeros(rows, capacity, dtype=torch.long, device=device)
        self.visible = torch.zeros(rows, capacity, dtype=torch.bool, device=device)  # columns with a token to look at
        self.done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.logp = torch.zeros(rows, capacity, device=device)
        self.entropy = torch.zeros(rows, capacity, device=device)
        self.cache = SlotCache(model, rows, capacity, self.slot)
        self.copies = half_copies(model)
        self.rows = rows
        self.places: Tensor | None = None  # which of them are still in the batch; None: all
        self.ended: list[tuple[Tensor, ...]] = []  # places, sequences, logp and entropy of those that left the batch
        self.replay = _capture(partial(self.step, model), device) if _can_capture(device) else None

    @property
    def bytes(self) -> int:
        """Of fixed memory. A captured step also keeps what it needs as it runs, mostly a few copies of the logits."""
        large = [*self.cache.keys, *self.cache.values, *self.copies.values(), self.sequences, self.logp, self.entropy]
        return sum(tensor.nbytes for tensor in large)

    @torch.no_grad()
    def load(self, model, prompt_ids, prompt_mask, prefix, num_generations) -> None:
        """Start over: P prompts, each in G rows, and the weights as they are now."""
        length = prompt_ids.shape[1]
        is_token = prompt_mask.repeat_interleave(num_generations, 0)
        self.sequences.fill_(self.sampling.pad_token_id)
        self.sequences[:, :length] = prompt_ids.repeat_interleave(num_generations, 0)
        self.last_of_prompt.copy_(self.sequences[:, length - 1 : length])
        self.visible.zero_()
        self.visible[:, : length - 1] = is_token[:, :-1]
        self.position.copy_(is_token.sum(-1, keepdim=True) - 1)
        self.slot.fill_(length - 1)
        self.done.zero_()
        self.cache.load(prefix, prompt_mask[:, :-1], num_generations)
        for name, copy in self.copies.items():
            copy.copy_(model.get_parameter(name))

    def run(self, model, steps: int) -> int:
        """Take at most so many steps, fewer if all rows have ended; how many were taken."""
        advance = self.replay or partial(self.step, model)
        every = CHECK_EVERY if self.replay else 1
        for taken in range(1, steps + 1):
            advance()
            if taken % every == 0 and self.done.all():
                break
            if not self.replay and (~self.done).sum() < STILL_WRITING * len(self.done):
                self._drop_ended()
        return taken

    def drawn(self) -> tuple[Int[Tensor, "B S"], Float[Tensor, "B S"], Float[Tensor, "B S"]]:
        """Sequences, log-probabilities and entropies of all rows, each in its place."""
        if self.places is None:
            return self.sequences, self.logp, self.entropy
        here = (self.places, self.sequences, self.logp, self.entropy)
        places, *values = (torch.cat(parts) for parts in zip(*self.ended, here, strict=True))
        order = places.argsort()
        return tuple(value[order] for value in values)

    def _drop_ended(self) -> None:
        """Take the rows that have ended out of the batch: the next step is shorter by them."""
        if self.places is None:
            self.places = torch.arange(self.rows, device=self.done.device)
        names = ("places", "sequences", "logp", "entropy")
        self.ended.append(tuple(getattr(self, name)[self.done] for name in names))
        writing = ~self.done
        for name in (*names, "position", "last_of_prompt", "visible", "done"):
            setattr(self, name, getattr(self, name)[writing])
        self.cache.keep(writing)

    @torch.no_grad()
    def step(self, model) -> None:
        """Read one token of every row and draw the next. No shape and no branch depends on a value."""
        self.visible.index_fill_(1, self.slot, True)
        log_pi = self._scores(model).log_softmax(-1)
        drawn = self._draw(log_pi)[:, None]
        self.slot.add_(1)
        self.position.add_(1)
        self.logp.index_copy_(1, self.slot, log_pi.gather(-1, drawn))
        self.entropy.index_copy_(1, self.slot, entropy_of(log_pi)[:, None])
        drawn = drawn.masked_fill(self.done[:, None], self.sampling.pad_token_id)
        self.sequences.index_copy_(1, self.slot, drawn)
        self.done.logical_or_((drawn == self.ends).any(-1))

    def _draw(self, log_pi: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
        """A token of each row. Random numbers are taken for those that have left, too: it changes no other row."""
        here = slice(None) if self.places is None else self.places
        if log_pi.shape[1] < MANY_TOKENS or _can_capture(log_pi.device):
            return exponential_race(log_pi, log_pi.new_empty(self.rows, log_pi.shape[1]).exponential_()[here])
        return inverse_cdf(log_pi, torch.rand(self.rows, dtype=torch.float64, device=log_pi.device)[here])

    def _scores(self, model) -> Float[Tensor, "B V"]:
        token = self.sequences.index_select(1, self.slot)
        keywords = {
            "attention_mask": self._mask(model.config),
            "position_ids": self.position,
            "past_key_values": self.cache,
            "use_cache": True,
        }
        with decoding(model):
            out = functional_call(model, self.copies, (token,), keywords, tie_weights=False)
        ids = torch.where(self.visible, self.sequences, self.last_of_prompt)
        return self.sampling.warp(ids, out.logits[:, -1].float())

    def _mask(self, config) -> Float[Tensor, "B 1 R S"]:
        """0 or minus infinity, for each of the R query heads that share a key head; made once for all layers."""
        shared = config.num_attention_heads // config.num_key_value_heads
        mask = torch.zeros(
            len(self.visible), 1, shared, self.visible.shape[1], dtype=self.cache.dtype, device=self.visible.device
        )
        return mask.masked_fill_(~self.visible[:, None, None], -torch.inf)


_kept: WeakKeyDictionary = WeakKeyDictionary()  # model -> what its decoder was made for, and the decoder


def _decoder_for(model, rows: int, capacity: int, sampling: Sampling) -> Decoder:
    """The one that is kept, if nothing that went into its graph has changed, else a new one."""
    addresses = tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
    autocast = torch.is_autocast_enabled(model.device.type)
    made_for = (rows, capacity, sampling, arithmetic(model), autocast, addresses)
    if model in _kept and _kept[model][0] == made_for:
        return _kept[model][1]
    release(model)
    decoder = Decoder(model, rows, capacity, sampling)
    if decoder.replay and _fits(decoder, rows * model.config.vocab_size):
        _kept[model] = (made_for, decoder)
    return decoder


def _fits(decoder: Decoder, logits: int) -> bool:
    total = torch.cuda.get_device_properties(decoder.slot.device).total_memory
    return decoder.bytes + CAPTURED_LOGITS * 4 * logits <= KEPT_SHARE * total


def release(model) -> None:
    """Give back what decoding with this model holds of the card's memory."""
    if _kept.pop(model, None) is not None:
        torch.cuda.empty_cache()


def _can_capture(device: torch.device) -> bool:
    return device.type == "cuda"


def _capture(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Record what the step asks of the card; the result repeats it, on whatever its memory holds by then.

    The random numbers of warm-up and capture are given back, so that a run that captures again draws the same tokens.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.random.fork_rng(devices=[device]):
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
    return graph.replay
