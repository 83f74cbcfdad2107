"""Decoding in fixed memory: one token step in tensors that never move, which a card captures once and repeats.

A token step of a 24-layer model is a thousand small kernels: a millisecond or two of a card's work, 20 to 30 for Python
to ask for them. So here a step reads and writes only tensors of fixed size and address, asks the host for nothing, and
can be recorded as a CUDA graph: from then on a single call repeats all of it.

The attention reads all columns of the cache and masks those that are not written yet: lengths must not change. Tokens
are drawn by an exponential race instead of `torch.multinomial`, which waits for the host. Rows that have ended go on
drawing, unread: a step of 64 rows takes hardly longer than one of 32, since the weights are read either way.

On a processor nothing is captured, and all three are otherwise: attention reads the columns that are written; one
random number a row is drawn, not one for each token of the vocabulary; and as a step of 32 rows takes half as long as
one of 64, rows that have ended leave the batch, and rows that have drawn the same so far are one until they part.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.func import functional_call

from grpo_lab.base.checks import RunError
from grpo_lab.logprobs import completion_mask
from grpo_lab.rollout.cache import SlotCache, autocast_copies, decoding
from grpo_lab.rollout.dynamic import NOT_FINITE, Sampling, entropy_of
from grpo_lab.rollout.packing import packed_prompts

CAPACITY_STEP = 64  # the columns of a card's cache are a multiple of this: then its kernels take a mask without a copy
CHECK_EVERY = 16  # steps between two questions whether all rows have ended; each makes the host wait for the card
CAPTURED = {"cuda"}  # the devices on which a step is recorded
WARM_UP = 3  # steps before the capture: libraries set themselves up at first use, which no graph can hold
CAPTURED_LOGITS = 6  # float32 tensors of their size (softmax, noise, ...) that stay reserved for a captured step


def exponential_race(log_pi: Float[Tensor, "B V"], noise: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
    r"""Draw one token a row from its distribution, as the winner of a race that the host need not watch.

    Give every token v a clock that rings after a time E_v / \pi_v. The clock is exponential with rate \pi_v, and the
    first of independent exponential clocks is that of v with probability \pi_v over the sum of all rates, which is
    \pi_v itself. The first to ring has the largest

    s_{b,v} = \frac{\pi_{b,v}}{E_{b,v}}, \quad E_{b,v} \sim \mathrm{Exp}(1) \tag{8.30}
    y_b = \operatorname{arg\,max}_v s_{b,v}                                  \tag{8.31}

    Args:
        log_pi: log-probabilities, shape (B, V); minus infinity at tokens that cannot come.
        noise: E > 0, one exponential number for each of them, such as `torch.empty_like(log_pi).exponential_()`.

    Returns:
        Token ids, shape (B,).

    Source: Maddison, Tarlow and Minka (2014), "A* sampling", section 2; the race is what `torch.multinomial` runs, too.
    """
    s = log_pi.exp() / noise  # B V (8.30)
    token = s.argmax(-1)  # B (8.31)
    return token


def inverse_cdf(
    log_pi: Float[Tensor, "M V"], u: Float64[Tensor, " B"], distribution: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Draw one token a row with one random number a row: the first v whose cumulative probability is above it.

    u: uniform in [0, 1), in float64: with the 24 bits of a float32 rare tokens would come too seldom.
    distribution: which of the M each row draws from. They stand on one line, the m-th from m to m + 1.

    Source: Devroye (1986), "Non-Uniform Random Variate Generation", section III.2.
    """
    cdf = log_pi.exp().double().cumsum_(-1)
    stacked_cdf = cdf.div_(cdf[:, -1:].clone()).add_(torch.arange(len(cdf), device=cdf.device)[:, None]).flatten()
    point = torch.minimum(distribution + u, (distribution + torch.ones_like(u)).nextafter(torch.zeros_like(u)))
    token = torch.searchsorted(stacked_cdf, point, right=True) - distribution * log_pi.shape[1]
    return token.clamp(0, log_pi.shape[1] - 1)  # where NaN stands; the log-probability tells


def sample_static(
    model,
    prompt_ids: Int[Tensor, "P L"],
    prompt_mask: Bool[Tensor, "P L"],
    num_generations: int,
    max_completion_length: int,
    sampling: Sampling,
) -> tuple[Int[Tensor, "B S"], Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Draw with a step that a card can repeat, for a model on the fast paths; called as `sample_dynamic` is."""
    start = prompt_ids.shape[1]
    prefix = packed_prompts(model, prompt_ids[:, :-1], prompt_mask[:, :-1]) if start > 1 else None
    columns = start + max_completion_length
    if model.device.type in CAPTURED:
        columns = fixed_columns(start, max_completion_length)
    decoder = Decoder(model, len(prompt_ids), num_generations, columns, sampling)
    decoder.load(prompt_ids, prompt_mask, prefix)
    steps = decoder.run(max_completion_length)
    completions = decoder.sequences[:, start : start + steps]
    end = start + int(completion_mask(completions, list(sampling.eos_token_ids)).any(0).sum())
    sequences, logp, entropy = decoder.sequences[:, :end], decoder.logp[:, start:end], decoder.entropy[:, start:end]
    if not logp.isfinite().all():
        raise RunError(NOT_FINITE)
    if decoder.replay:
        del decoder
        torch.cuda.empty_cache()  # what a graph has reserved can be used for nothing else
    return sequences, logp, entropy


def fixed_columns(prompt_length: int, completion_length: int) -> int:
    r"""The columns of a cache that must not move: those that may be needed, rounded up to a multiple of 64.

    S = 64 \left\lceil \frac{L + T}{64} \right\rceil \tag{8.13}
    """
    return CAPACITY_STEP * -(-(prompt_length + completion_length) // CAPACITY_STEP)  # scalar (8.13)


class Decoder:
    """A token step for P prompts with G rows each, and all that it reads and writes: on a card in fixed memory."""

    def __init__(self, model, prompts: int, num_generations: int, capacity: int, sampling: Sampling):
        self.model, self.sampling, rows = model, sampling, prompts * num_generations
        self.captured = model.device.type in CAPTURED  # then no shape or branch of a step may depend on a value
        zeros = partial(torch.zeros, dtype=torch.long, device=model.device)
        self.ends = torch.tensor(sampling.eos_token_ids, device=model.device)
        self.slot = zeros(1)  # the column of the cache that is written; the token that is drawn goes into the next
        # A batch reads each prefix once. On a card each row counts as one; else the rows of a prompt share theirs.
        rows_per_prefix = 1 if self.captured else num_generations
        self.rows = torch.arange(rows, device=model.device)  # those that still write
        self.prefix_index = self.rows // rows_per_prefix  # which prefix each of them has
        self.prefix_row, batch = self.rows[::rows_per_prefix], rows // rows_per_prefix  # a row with each prefix
        # Of each prefix:
        self.token = zeros(batch, 1)  # its last token, which is read
        self.position = zeros(batch, 1)  # of that token
        self.visible = zeros(batch, capacity, dtype=torch.bool)  # columns with a token to look at
        self.done = zeros(rows, dtype=torch.bool)
        self.sequences = zeros(rows, capacity)
        self.logp, self.entropy = (zeros(rows, capacity, dtype=torch.float32) for _ in range(2))
        self.cache = SlotCache(model, batch, capacity, self.slot)
        self.autocast_weights = autocast_copies(model)
        self.replay = _capture(self.step, model.device) if self.captured else None

    @torch.no_grad()
    def load(self, prompt_ids, prompt_mask, prefix) -> None:
        """Start with the prompts; prefix: `packed_prompts` of all their tokens but the last, if there are any."""
        (prompts, length), copies = prompt_ids.shape, len(self.prefix_row) // len(prompt_ids)
        self.sequences.fill_(self.sampling.pad_token_id)
        self.sequences[:, :length] = prompt_ids.repeat_interleave(len(self.rows) // prompts, 0)
        is_token = prompt_mask.repeat_interleave(copies, 0)
        self.token.copy_(prompt_ids[:, -1:].repeat_interleave(copies, 0))
        self.visible.zero_()
        self.visible[:, : length - 1] = is_token[:, :-1]  # [padding]
        self.position.copy_(is_token.sum(-1, keepdim=True) - 1)
        self.slot.fill_(length - 1)
        self.done.zero_()
        self.cache.load(prefix, copies)

    def run(self, max_steps: int) -> int:
        """Take at most so many steps, fewer if all rows have ended; returns how many."""
        advance = self.replay or self.step
        check_every = CHECK_EVERY if self.captured else 1
        for steps in range(1, max_steps + 1):
            advance()
            if steps % check_every == 0 and self.done.all():
                break
            if not self.captured and steps < max_steps:
                self._regroup_rows()
        return steps

    def _regroup_rows(self) -> None:
        """Drop the rows that have ended, and give rows that drew different tokens a prefix each."""
        writing, vocab_size = ~self.done, self.model.config.vocab_size
        self.rows, self.done = self.rows[writing], self.done[writing]
        extended = self.prefix_index[writing] * vocab_size + self.sequences[self.rows, self.slot]  # prefix and token
        new_prefixes, self.prefix_index = extended.unique(return_inverse=True)
        parent, self.token = new_prefixes // vocab_size, new_prefixes[:, None] % vocab_size
        self.prefix_row = torch.empty_like(parent).scatter(0, self.prefix_index, self.rows)
        if not torch.equal(parent, torch.arange(len(self.position), device=parent.device)):
            self.position, self.visible = self.position[parent], self.visible[parent]
            self.cache.select_rows(parent)

    @torch.no_grad()
    def step(self) -> None:
        """Read one token of every prefix and draw the next of every row. No shape or branch depends on a value."""
        self.visible.index_fill_(1, self.slot, True)
        if not self.captured:
            self.cache.columns = int(self.slot) + 1
        log_pi = self._logits().log_softmax(-1)
        next_token = self._draw(log_pi)
        self.slot.add_(1)
        self.position.add_(1)
        cells = (self.rows, self.slot)
        self.logp.index_put_(cells, log_pi[self.prefix_index, next_token])  # [recorded]
        self.entropy.index_put_(cells, entropy_of(log_pi)[self.prefix_index])
        next_token = next_token.masked_fill(self.done, self.sampling.pad_token_id)
        self.sequences.index_put_(cells, next_token)
        if self.captured:
            self.token.copy_(next_token.unsqueeze(1))
        self.done.logical_or_((next_token.unsqueeze(1) == self.ends).any(-1))

    def _draw(self, log_pi: Float[Tensor, "M V"]) -> Int[Tensor, " B"]:
        """Draw a token of each row. Rows that have left use up random numbers, too: their end changes no other row."""
        if self.captured:
            return exponential_race(log_pi, torch.empty_like(log_pi).exponential_())
        u = torch.rand(len(self.sequences), dtype=torch.float64)
        return inverse_cdf(log_pi, u[self.rows], self.prefix_index)

    def _logits(self) -> Float[Tensor, "M V"]:
        keywords = {"attention_mask": self._mask(), "position_ids": self.position}
        keywords |= {"past_key_values": self.cache, "use_cache": True}
        with decoding(self.model):
            out = functional_call(self.model, self.autocast_weights, (self.token,), keywords, tie_weights=False)
        ids = torch.where(self.visible, self.sequences.index_select(0, self.prefix_row), self.token)
        return self.sampling.warp(ids, out.logits[:, -1].float())

    def _mask(self) -> Float[Tensor, "M 1 R S"]:
        """0 or minus infinity, for each of the R query heads that share a key head; made once for all layers."""
        config = self.model.config
        heads_per_key = config.num_attention_heads // config.num_key_value_heads
        visible = self.visible[:, None, None, : self.cache.columns].expand(-1, -1, heads_per_key, -1)
        mask = torch.zeros(visible.shape, dtype=self.cache.dtype, device=visible.device)
        return mask.masked_fill_(~visible, -torch.inf)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: cuBLAS keeps a workspace for each stream that it has seen, 32 MiB on a large card."""
    return torch.cuda.Stream(device)


def _capture(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Record what the step asks of the card; the result repeats it, on whatever its memory holds by then.

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
        with torch.cuda.graph(graph, stream=stream):
            step()
    return graph.replay
