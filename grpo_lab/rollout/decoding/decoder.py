"""Decoders, which draw token by token with a key-value cache: the plain one, and the one that saves a CPU work.

`Decoder` is the loop of every sampler: read the last token of each row, draw the next, record its log-probability.
Each row is a row of the batch until all have ended, and attention reads all columns of the cache, masked where nothing
is written yet. `GraphDecoder` (static.py) repeats this step as a CUDA graph.

`CpuDecoder` samples from the same distributions with less work. A step of 32 rows takes a CPU half as long as one of
64, so rows that have drawn the same tokens so far are one row of the batch until they part, and rows that have ended
leave it; attention reads the columns that are written; and one random number per row is drawn, not one per token of
the vocabulary. With a large model the vocabulary is multiplied and searched in blocks, and prefixes keep their place
in the cache. How it computes follows from shapes alone, so a run that is resumed computes as it did.

A comment such as `# [padding]` labels a line that exercises and mutation tests break (formulas/lines.py).
"""

from functools import partial

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import pad

from grpo_lab.base.checks import RunError
from grpo_lab.logprobs import LARGE_VOCABULARY, head_logits
from grpo_lab.rollout.decoding.cache import RoomyCache, SlotCache, autocast_copies, decoding, order_keeping_parents
from grpo_lab.rollout.decoding.sampling_params import NOT_FINITE, SamplingParams, entropy_of
from grpo_lab.rollout.decoding.turns import DRAWN, Turns
from grpo_lab.rollout.forward.attention import attention_dtype
from grpo_lab.rollout.forward.fast_paths import head_dim
from grpo_lab.rollout.inputs import Prompts

LARGE_ROW = 2**20  # bytes of a row of the cache; larger ones are not copied when others come or go
SEARCH_BLOCK = 128  # tokens


class Decoder:
    """G completions of each of P prompts, one token of every row at a time; B = P*G rows.

    A batch of the model holds prefixes, of which each row has one: here its own, in a subclass perhaps a shared one.

    Args:
        model: one of the fast paths.
        num_prompts, num_generations: P and G.
        columns: of the cache, enough for the longest prompt and its completion.
        sampling: how tokens are drawn, and which end a completion.
        turns: for episodes only. Supplies the environment's tokens and says which rows have finished.
        rollout_rows: of the whole rollout, where this is a part of it; each part draws the random numbers of all.
    """

    shares_prefixes = False  # whether the G rows of a prompt begin as one row of the batch

    def __init__(
        self,
        model,
        num_prompts: int,
        num_generations: int,
        columns: int,
        sampling: SamplingParams,
        turns: Turns | None = None,
        rollout_rows: int | None = None,
    ):
        num_rows = num_prompts * num_generations
        rows_per_prefix = num_generations if self.shares_prefixes else 1
        num_prefixes = num_rows // rows_per_prefix
        zeros = partial(torch.zeros, dtype=torch.long, device=model.device)

        self.model = model
        self.sampling = sampling
        self.turns = turns
        self.slot = zeros(1)  # the column of the cache that is written; the token that is drawn goes into the next
        self.cache = self._new_cache(num_prefixes, num_rows, columns)
        self.autocast_weights = autocast_copies(model)
        eos_token_ids = sampling.eos_token_ids if turns is None else ()  # in an episode `turns` says what ends a row
        self.eos_token_ids = torch.tensor(eos_token_ids, dtype=torch.long, device=model.device)

        # The record of all rows, one entry per row:
        self.sequences = zeros(num_rows, columns)
        self.logp = zeros(num_rows, columns, dtype=torch.float32)
        self.entropy = zeros(num_rows, columns, dtype=torch.float32)
        self.forced = None if turns is None else zeros(num_rows) + DRAWN  # what the environment has it write next

        # The rows that still write, one entry for each of them:
        self.rows = torch.arange(num_rows, device=model.device)  # their numbers
        self.done = zeros(num_rows, dtype=torch.bool)
        self.prefix_index = self.rows // rows_per_prefix  # the prefix that a row has

        # The batch of the model, one entry per prefix:
        self.representative_row = self.rows[::rows_per_prefix]  # one of the rows that have it
        self.token = zeros(num_prefixes, 1)  # its last token, which is read
        self.position = zeros(num_prefixes, 1)  # of that token
        self.visible = zeros(num_prefixes, columns, dtype=torch.bool)  # columns with a token to look at

        # Where this is a part of a rollout: how many rows that has, and the numbers of these rows among them.
        self.rollout_rows = rollout_rows or num_rows
        self.rows_in_rollout = None if self.rollout_rows == num_rows else self.rows.clone()

    def _new_cache(self, num_prefixes: int, num_rows: int, columns: int) -> SlotCache:
        """New cache for the first prefixes; later there is at most one prefix per row."""
        return SlotCache(self.model, num_prefixes, columns, self.slot)

    @torch.no_grad()
    def load(self, prompts: Prompts, prefix, first_row: int = 0) -> None:
        """Start with the prompts; prefix: `packed_prompts` of all their tokens but the last, if there are any.

        first_row: the number of the first of these rows among those of the rollout.
        """
        if self.rows_in_rollout is not None:
            self.rows_in_rollout.copy_(torch.arange(len(self.rows_in_rollout), device=self.token.device) + first_row)
        num_prompts, prompt_length = prompts.ids.shape
        prefixes_per_prompt = len(self.representative_row) // num_prompts
        self.sequences.fill_(self.sampling.pad_token_id)
        self.sequences[:, :prompt_length] = prompts.ids.repeat_interleave(len(self.rows) // num_prompts, 0)
        is_token = prompts.mask.repeat_interleave(prefixes_per_prompt, 0)
        self.token.copy_(prompts.ids[:, -1:].repeat_interleave(prefixes_per_prompt, 0))
        self.visible.zero_()
        self.visible[:, : prompt_length - 1] = is_token[:, :-1]  # [padding]
        self.position.copy_(is_token.sum(-1, keepdim=True) - 1)
        self.slot.fill_(prompt_length - 1)
        self.done.zero_()
        if self.forced is not None:
            self.forced.fill_(DRAWN)
        self.cache.load(prefix, prefixes_per_prompt)

    @torch.no_grad()
    def reuse(self, turns: Turns | None = None) -> None:
        """Make ready for another rollout in the same memory, by the weights as they are now; `load` comes next."""
        self.turns = turns
        for name, rounded in self.autocast_weights.items():
            rounded.copy_(self.model.get_parameter(name))

    def run(self, max_steps: int) -> int:
        """Take at most `max_steps` steps, fewer if all rows have ended; returns how many."""
        for steps in range(1, max_steps + 1):
            next_token = self.step()
            self.take_turns()
            if self.done.all():
                return steps
            self.token = next_token.unsqueeze(1)
        return max_steps

    @torch.no_grad()
    def step(self) -> Int[Tensor, " B"]:
        """Read the last token of every prefix, and draw and record the next of every row, which is returned."""
        self.visible.index_fill_(1, self.slot, True)
        log_pi = self._logits().log_softmax(-1)
        pi = log_pi.exp()  # once, to draw and for the entropy
        next_token = self.draw(log_pi, pi)
        if self.turns is not None:
            forced = self.forced[self.rows]
            next_token = torch.where(forced == DRAWN, next_token, forced)
        self.slot.add_(1)
        self.position.add_(1)
        token_index = (self.rows, self.slot)
        self.logp.index_put_(token_index, log_pi[self.prefix_index, next_token])  # [recorded]
        self.entropy.index_put_(token_index, entropy_of(log_pi, pi)[self.prefix_index])
        next_token = next_token.masked_fill(self.done, self.sampling.pad_token_id)
        self.sequences.index_put_(token_index, next_token)
        self.done.logical_or_((next_token.unsqueeze(1) == self.eos_token_ids).any(-1))
        return next_token

    def take_turns(self) -> None:
        """Hand the tokens of this step to the turns, if there are any: at every step, the host waits for the device."""
        if self.turns is not None:
            self.turns.append(self.rows.tolist(), self.sequences[self.rows, self.slot].tolist())
            self.forced.copy_(torch.tensor(self.turns.forced()))
            self.done.copy_(torch.tensor(self.turns.done, device=self.done.device)[self.rows])

    def draw(self, log_pi: Float[Tensor, "M V"], pi: Float[Tensor, "M V"]) -> Int[Tensor, " B"]:
        """Draw the next token of every row from the distribution after its prefix."""
        if pi.isnan().any():
            raise RunError(NOT_FINITE)
        return pi.multinomial(1)[:, 0]

    def _logits(self) -> Float[Tensor, "M V"]:
        keywords = {"attention_mask": self._mask(), "position_ids": self.position}
        keywords |= {"past_key_values": self.cache, "use_cache": True}
        with decoding(self.model):
            logits = self._forward(keywords)
        ids = torch.where(self.visible, self.sequences.index_select(0, self.representative_row), self.token)
        return self.sampling.warp(ids, logits.float())

    def _forward(self, keywords: dict) -> Float[Tensor, "M V"]:
        """The model's logits after the last token of each prefix."""
        out = functional_call(self.model, self.autocast_weights, (self.token,), keywords, tie_weights=False)
        return out.logits[:, -1]

    def _mask(self) -> Float[Tensor, "M 1 R S"]:
        """Attention mask of one step, 0 or minus infinity, made once for all layers."""
        config = self.model.config
        heads_per_key = config.num_attention_heads // config.num_key_value_heads
        visible = self.visible[:, None, None, : self.cache.columns].expand(-1, -1, heads_per_key, -1)
        mask = torch.zeros(visible.shape, dtype=self.cache.dtype, device=visible.device)
        return mask.masked_fill_(~visible, -torch.inf)


class CpuDecoder(Decoder):
    """Decoding on a CPU: each prefix that several rows have is computed once, and rows that have ended leave."""

    shares_prefixes = True

    def _new_cache(self, num_prefixes: int, num_rows: int, columns: int) -> SlotCache:
        config = self.model.config
        numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(config) * columns
        if numbers * attention_dtype(self.model).itemsize < LARGE_ROW:
            return super()._new_cache(num_prefixes, num_rows, columns)
        return RoomyCache(self.model, num_prefixes, num_rows, columns, self.slot)

    def _forward(self, keywords: dict) -> Float[Tensor, "M V"]:
        head = self.model.get_output_embeddings()
        is_large = len(head.weight) > LARGE_VOCABULARY and not self.autocast_weights
        if not is_large or type(head) is not torch.nn.Linear or head.bias is not None:
            return super()._forward(keywords)
        hidden = self.model.base_model(self.token, **keywords).last_hidden_state
        return head_logits(hidden[:, -1], head.weight)

    def run(self, max_steps: int) -> int:
        for steps in range(1, max_steps + 1):
            if steps > 1:
                self.regroup_rows()
            self.cache.columns = int(self.slot) + 1  # those that are written
            self.step()
            self.take_turns()
            if self.done.all():
                return steps
        return max_steps

    def regroup_rows(self) -> None:
        """Drop the rows that have ended, and give each of the rows that drew different tokens its own prefix."""
        writing = ~self.done
        vocab_size = self.model.config.vocab_size
        self.rows, self.done = self.rows[writing], self.done[writing]
        # A prefix and the token after it, as one number.
        extended = self.prefix_index[writing] * vocab_size + self.sequences[self.rows, self.slot]
        new_prefixes, self.prefix_index = extended.unique(return_inverse=True)
        if isinstance(self.cache, RoomyCache):
            order = order_keeping_parents(new_prefixes // vocab_size)
            new_prefixes, self.prefix_index = new_prefixes[order], order.argsort()[self.prefix_index]
        parent, self.token = new_prefixes // vocab_size, new_prefixes[:, None] % vocab_size
        self.representative_row = torch.empty_like(parent).scatter(0, self.prefix_index, self.rows)
        if not torch.equal(parent, torch.arange(len(self.position), device=parent.device)):
            self.position, self.visible = self.position[parent], self.visible[parent]
            self.cache.select_rows(parent)

    def draw(self, log_pi: Float[Tensor, "M V"], pi: Float[Tensor, "M V"]) -> Int[Tensor, " B"]:
        """Draw with one random number per row. Rows that have left use up theirs, too, so that no other row changes."""
        u = torch.rand(self.rollout_rows, dtype=torch.float64)
        u = u if self.rows_in_rollout is None else u[self.rows_in_rollout]
        return inverse_cdf(pi, u[self.rows], self.prefix_index)


def inverse_cdf(
    pi: Float[Tensor, "M V"], u: Float64[Tensor, " B"], distribution: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Draw one token per row with one random number per row: the first v whose cumulative probability is above it.

    pi: the probabilities of each distribution, to be scaled so that their sum is 1.
    u: uniform in [0, 1), in float64: with the 24 bits of a float32 rare tokens would come too seldom.
    distribution: which of the M each row draws from. They stand on one line, the m-th from m to m + 1.

    Source: Devroye (1986), "Non-Uniform Random Variate Generation", section III.2.
    """
    if pi.shape[1] <= LARGE_VOCABULARY:
        token, *_ = _first_above(pi, u, distribution)
    else:  # the block, then the token in it: all cumulative sums would be ten times the work of the sums of blocks
        blocks = pad(pi, (0, -pi.shape[1] % SEARCH_BLOCK)).unflatten(1, (-1, SEARCH_BLOCK))
        block, point, stacked_cdf = _first_above(blocks.sum(-1), u, distribution)
        block = block.clamp(0, blocks.shape[1] - 1)
        index = distribution * blocks.shape[1] + block
        lower = torch.where(block > 0, stacked_cdf[index - 1], distribution)
        u_in_block = ((point - lower) / (stacked_cdf[index] - lower)).clamp(0, 1)
        rows = torch.arange(len(u), device=u.device)
        token, *_ = _first_above(blocks[distribution, block], u_in_block, rows)
        token += block * SEARCH_BLOCK
    return token.clamp(0, pi.shape[1] - 1)  # where NaN stands; the log-probability tells


def _first_above(
    pi: Float[Tensor, "M V"], u: Float64[Tensor, " B"], distribution: Int[Tensor, " B"]
) -> tuple[Int[Tensor, " B"], Float64[Tensor, " B"], Float64[Tensor, " MV"]]:
    """The first v whose cumulative probability is above u; and u and all of these, on the line of `inverse_cdf`."""
    cdf = pi.cumsum(-1, dtype=torch.float64)
    stacked_cdf = cdf.div_(cdf[:, -1:].clone()).add_(torch.arange(len(cdf), device=cdf.device)[:, None]).flatten()
    point = torch.minimum(distribution + u, (distribution + torch.ones_like(u)).nextafter(torch.zeros_like(u)))
    return torch.searchsorted(stacked_cdf, point, right=True) - distribution * pi.shape[1], point, stacked_cdf
