"""Decoding token by token with a key-value cache, on any device; `CpuDecoder` does it with less work on a CPU.

`Decoder` is the loop of every sampler but the one that calls `generate` of transformers: read the last token of each
row, draw the next token, record its log-probability. No row leaves before all rows have ended, and attention reads all
columns of the cache; a mask hides the columns that are not written yet. `GraphDecoder` (graph_decoder.py) repeats this
token step as a CUDA graph.

`CpuDecoder` draws from the same distributions. On a CPU, a token step takes less time if it reads fewer tokens. So
rows that have drawn the same tokens so far share one prefix until they part, and rows that have ended leave. Attention
reads only the columns that are written. A step draws one random number per row, not one per token of the vocabulary.
With a large model, the vocabulary is multiplied and searched in blocks, and prefixes keep their place in the cache. How
a step is computed follows from shapes alone, so a resumed run computes the same.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import pad

from grpo_lab.base.checks import RunError
from grpo_lab.config.settings import SamplingParams
from grpo_lab.logprobs import LARGE_VOCABULARY, completion_mask, head_logits
from grpo_lab.rollout.decoding.cache import (
    InPlaceCache,
    PreallocatedCache,
    autocast_copies,
    decoding_mode,
    order_keeping_parents,
)
from grpo_lab.rollout.decoding.sampling_request import (
    NONFINITE_LOGITS_MESSAGE,
    NOT_FORCED,
    EpisodeTokens,
    Samples,
    SamplingRequest,
    apply_sampling_params,
    entropy_of,
)
from grpo_lab.rollout.forward.attention import attention_dtype
from grpo_lab.rollout.forward.packing import PromptCache
from grpo_lab.rollout.model import head_dim

LARGE_PREFIX_BYTES = 2**20  # prefixes that take more bytes in the cache are not copied when others come or go
SEARCH_BLOCK = 128  # number of tokens of a block of the vocabulary


@dataclass(frozen=True)
class DecoderSpec:
    """All that a decoder's memory and its step are made for; requests with the same spec can share one decoder."""

    num_prompts: int  # P
    num_columns: int  # number of columns of the cache, enough for the longest prompt and its completion
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    num_rollout_rows: int | None = None  # number of rows of the rollout, if the decoder draws a part of it; else None
    has_environment: bool = False  # True if the rows are episodes, in which an environment writes some of the tokens

    @property
    def num_rows(self) -> int:
        """B = P * G, the number of rows that the decoder draws."""
        return self.num_prompts * self.sampling_params.num_generations

    @property
    def is_part(self) -> bool:
        """True if the decoder draws a part of a rollout."""
        return self.num_rollout_rows not in (None, self.num_rows)

    @property
    def num_random_rows(self) -> int:
        """Number of rows that a step draws random numbers for: all rows of the rollout, also for a part."""
        return self.num_rollout_rows or self.num_rows


@dataclass(frozen=True)
class ActiveRows:
    """The rows that are still drawn, one entry per row: at first all rows of a decoder."""

    row_index: Int[Tensor, " B"]  # index of the row among all rows of the decoder
    prefix_of_row: Int[Tensor, " B"]  # index of the row's prefix in `Prefixes`
    done: Bool[Tensor, " B"]  # True if the row has ended
    # The next token of the environment's reply, or `NOT_FORCED`. None without an environment.
    forced_token: Int[Tensor, " B"] | None


@dataclass(frozen=True)
class Prefixes:
    """The different prefixes of the active rows, which the model reads; one entry per prefix."""

    representative_row: Int[Tensor, " M"]  # index of one row that begins with the prefix
    last_token: Int[Tensor, "M 1"]  # last token of the prefix, which the next step reads
    position: Int[Tensor, "M 1"]  # position of that token
    readable_columns: Bool[Tensor, "M S"]  # columns of the cache that hold a token of the prefix


class Decoder:
    """Draws G completions of each of P prompts, one token of every row at a time; B = P*G rows.

    The model reads the last tokens of M prefixes at a time. A prefix is a prompt and the tokens drawn after it so far.
    Here each row has a prefix of its own; in a subclass, rows that have drawn the same tokens may share one.

    A token step changes only the contents of tensors: of the record, the cache, `active_rows` and `prefixes`. Only
    `CpuDecoder` replaces `active_rows` and `prefixes`, between two steps.

    Args:
        model: A model of the fast paths (`has_fast_path`).
        spec: The sizes, and the sampling parameters.
    """

    shares_prefixes = False  # True if rows share a prefix until they part; at first, the G rows of a prompt share one

    def __init__(self, model, spec: DecoderSpec):
        rows_per_prefix = spec.sampling_params.num_generations if self.shares_prefixes else 1
        num_rows, num_prefixes = spec.num_rows, spec.num_rows // rows_per_prefix
        zeros = partial(torch.zeros, dtype=torch.long, device=model.device)

        self.model = model
        self.spec = spec
        self.autocast_weights = autocast_copies(model)
        # In an episode, `episode_tokens` ends a row.
        eos_token_ids = () if spec.has_environment else spec.eos_token_ids
        self.eos_token_ids = torch.tensor(eos_token_ids, dtype=torch.long, device=model.device)

        # The request, set by `load_request`:
        self.episode_tokens: EpisodeTokens | None = None
        self.first_row = zeros(1) if spec.is_part else None  # index of the first row in the rollout, for a part of it

        # The record of all rows, of which each step writes one column:
        self.sequences = zeros(num_rows, spec.num_columns)
        self.logp = zeros(num_rows, spec.num_columns, dtype=torch.float32)
        self.entropy = zeros(num_rows, spec.num_columns, dtype=torch.float32)

        # What a step reads and writes besides:
        self.write_column = zeros(1)  # column of the cache that this step writes; its token goes into the next column
        self.cache = self._new_cache(num_prefixes)
        row_index = torch.arange(num_rows, device=model.device)
        self.active_rows = ActiveRows(
            row_index,
            prefix_of_row=row_index // rows_per_prefix,
            done=zeros(num_rows, dtype=torch.bool),
            forced_token=zeros(num_rows) + NOT_FORCED if spec.has_environment else None,
        )
        self.prefixes = Prefixes(
            representative_row=row_index[::rows_per_prefix],
            last_token=zeros(num_prefixes, 1),
            position=zeros(num_prefixes, 1),
            readable_columns=zeros(num_prefixes, spec.num_columns, dtype=torch.bool),
        )

    def _new_cache(self, num_prefixes: int) -> InPlaceCache:
        """Return a new cache for the prefixes of the prompts; later it may have to hold a prefix for each row."""
        return InPlaceCache(self.model, num_prefixes, self.spec.num_columns, self.write_column)

    @classmethod
    def spec_for(cls, request: SamplingRequest) -> DecoderSpec:
        """Return the spec of a decoder that can draw the completions of a request."""
        num_prompts, prompt_length = request.prompts.ids.shape
        return DecoderSpec(
            num_prompts,
            cls.columns_for(prompt_length, request.sampling_params.max_completion_length),
            request.sampling_params,
            request.eos_token_ids,
            request.pad_token_id,
            request.num_rollout_rows,
            has_environment=request.episode_tokens is not None,
        )

    @classmethod
    def columns_for(cls, prompt_length: int, completion_length: int) -> int:
        """Return the number of columns of the cache for prompts and completions of at most these lengths."""
        return prompt_length + completion_length

    @classmethod
    def for_request(cls, model, request: SamplingRequest) -> AbstractContextManager["Decoder"]:
        """Return a context that provides a decoder for a request; a subclass may keep it for the next one."""
        return nullcontext(cls(model, cls.spec_for(request)))

    @classmethod
    def end_rollout(cls) -> None:
        """Say that all parts of a rollout are drawn; a subclass may then free the decoder that it has kept."""

    @torch.no_grad()
    def load_request(self, request: SamplingRequest, prompt_cache: PromptCache | None) -> None:
        """Write the prompts of a request into the memory of the decoder; `draw_completions` comes next.

        Args:
            request: A request with the spec of this decoder.
            prompt_cache: The result of `packed_prompts` for all tokens of the prompts but the last ones; None if every
                prompt is one token long.
        """
        rows, prefixes, prompts = self.active_rows, self.prefixes, request.prompts
        num_prompts, prompt_length = prompts.ids.shape
        prefixes_per_prompt = len(prefixes.position) // num_prompts
        self.episode_tokens = request.episode_tokens
        if self.first_row is not None:
            self.first_row.fill_(request.first_row)
        self.sequences.fill_(self.spec.pad_token_id)
        self.sequences[:, :prompt_length] = prompts.ids.repeat_interleave(self.spec.num_rows // num_prompts, 0)
        self.write_column.fill_(prompt_length - 1)
        self.cache.load(prompt_cache, prefixes_per_prompt)
        rows.done.zero_()
        if rows.forced_token is not None:
            rows.forced_token.fill_(NOT_FORCED)
        is_token = prompts.mask.repeat_interleave(prefixes_per_prompt, 0)
        prefixes.last_token.copy_(prompts.ids[:, -1:].repeat_interleave(prefixes_per_prompt, 0))
        prefixes.position.copy_(is_token.sum(-1, keepdim=True) - 1)
        prefixes.readable_columns.zero_()
        prefixes.readable_columns[:, : prompt_length - 1] = is_token[:, :-1]  # [padding]

    @torch.no_grad()
    def refresh_autocast_weights(self) -> None:
        """Round the model's current weights again, for a request after these have been trained."""
        for name, weight in self.autocast_weights.items():
            weight.copy_(self.model.get_parameter(name))

    def draw_completions(self, max_new_tokens: int) -> int:
        """Draw until all rows have ended, at most `max_new_tokens` tokens of each; return the number of token steps."""
        for num_token_steps in range(1, max_new_tokens + 1):
            self.draw_next_tokens()
            self.update_episodes()
            if self.active_rows.done.all():
                return num_token_steps
        return max_new_tokens

    @torch.no_grad()
    def draw_next_tokens(self) -> None:
        """Read the last token of every prefix; draw and record the next token of every active row."""
        rows, prefixes = self.active_rows, self.prefixes
        prefixes.readable_columns.index_fill_(1, self.write_column, True)
        log_pi = self._logits().log_softmax(-1)
        pi = log_pi.exp()  # computed once, for the draw and for the entropy
        next_token = self.draw_from(log_pi, pi)
        if rows.forced_token is not None:
            next_token = torch.where(rows.forced_token == NOT_FORCED, next_token, rows.forced_token)
        self.write_column.add_(1)
        prefixes.position.add_(1)
        token_index = (rows.row_index, self.write_column)
        self.logp.index_put_(token_index, log_pi[rows.prefix_of_row, next_token])  # [recorded]
        self.entropy.index_put_(token_index, entropy_of(log_pi, pi)[rows.prefix_of_row])
        next_token = next_token.masked_fill(rows.done, self.spec.pad_token_id)
        self.sequences.index_put_(token_index, next_token)
        rows.done.logical_or_((next_token.unsqueeze(1) == self.eos_token_ids).any(-1))
        if not self.shares_prefixes:
            prefixes.last_token.copy_(next_token.unsqueeze(1))

    def update_episodes(self) -> None:
        """Pass the drawn tokens to `episode_tokens`; read back which tokens are forced next and which rows are done.

        This waits for the device. Without an environment there is nothing to do.
        """
        rows = self.active_rows
        if self.episode_tokens is not None and rows.forced_token is not None:
            self.episode_tokens.append(
                rows.row_index.tolist(), self.sequences[rows.row_index, self.write_column].tolist()
            )
            forced_token, done = (
                torch.tensor(values, device=rows.done.device)[rows.row_index]
                for values in (self.episode_tokens.next_forced_tokens(), self.episode_tokens.done)
            )
            rows.forced_token.copy_(forced_token)
            rows.done.copy_(done)

    def draw_from(self, log_pi: Float[Tensor, "M V"], pi: Float[Tensor, "M V"]) -> Int[Tensor, " B"]:
        """Draw the next token of every row of a whole rollout from the distribution after its prefix."""
        if pi.isnan().any():
            raise RunError(NONFINITE_LOGITS_MESSAGE)
        return pi.multinomial(1)[:, 0]

    def read_samples(self, prompt_length: int, num_token_steps: int) -> Samples:
        """Return the drawn completions, up to the last token of any row; these are views of the decoder's tensors.

        Args:
            prompt_length: L, number of columns of the prompts.
            num_token_steps: Number of token steps, as `draw_completions` returned it.

        Raises:
            RunError: if the log-probability of a token of the policy is not finite.
        """
        if self.episode_tokens is None:
            completions = self.sequences[:, prompt_length : prompt_length + num_token_steps]
            is_token = completion_mask(completions, list(self.spec.eos_token_ids))
            end_column = prompt_length + int(is_token.any(0).sum())
            checked_logp = self.logp[:, prompt_length:end_column]
        else:
            end_column = prompt_length + num_token_steps
            policy_mask = self.episode_tokens.tensors(0, self.logp.device).policy_mask
            # The policy may give a token of the environment any probability, even zero.
            checked_logp = self.logp[:, prompt_length:end_column][policy_mask]
        if not checked_logp.isfinite().all():
            raise RunError(NONFINITE_LOGITS_MESSAGE)
        return Samples(
            self.sequences[:, :end_column],
            self.logp[:, prompt_length:end_column],
            self.entropy[:, prompt_length:end_column],
            num_token_steps,
        )

    def _logits(self) -> Float[Tensor, "M V"]:
        """Return the logits of the distributions that the next tokens are drawn from, one for each prefix."""
        prefixes, config = self.prefixes, self.model.config
        # The attention mask, 0 or minus infinity, is computed once for all layers: M 1 R S.
        heads_per_key = config.num_attention_heads // config.num_key_value_heads
        is_readable = prefixes.readable_columns[:, None, None, : self.cache.num_read_columns]
        is_readable = is_readable.expand(-1, -1, heads_per_key, -1)
        mask = torch.zeros(is_readable.shape, dtype=self.cache.dtype, device=is_readable.device)
        mask.masked_fill_(~is_readable, -torch.inf)
        keywords: dict[str, Any] = {"attention_mask": mask, "position_ids": prefixes.position}
        keywords |= {"past_key_values": self.cache, "use_cache": True}
        with decoding_mode(self.model):
            logits = self._model_logits(keywords)
        sequences = self.sequences.index_select(0, prefixes.representative_row)
        ids = torch.where(prefixes.readable_columns, sequences, prefixes.last_token)
        return apply_sampling_params(self.spec.sampling_params, ids, logits.float())

    def _model_logits(self, keywords: dict) -> Float[Tensor, "M V"]:
        """Return the model's logits after the last token of each prefix."""
        arguments = (self.prefixes.last_token,)
        out = functional_call(self.model, self.autocast_weights, arguments, keywords, tie_weights=False)
        return out.logits[:, -1]


class CpuDecoder(Decoder):
    """The decoder for a CPU: a prefix that several rows share is computed once, and rows that have ended leave."""

    shares_prefixes = True

    def _new_cache(self, num_prefixes: int) -> InPlaceCache:
        config, num_columns = self.model.config, self.spec.num_columns
        numbers_per_column = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(config)
        if num_columns * numbers_per_column * attention_dtype(self.model).itemsize < LARGE_PREFIX_BYTES:
            return super()._new_cache(num_prefixes)
        return PreallocatedCache(self.model, num_prefixes, self.spec.num_rows, num_columns, self.write_column)

    def _model_logits(self, keywords: dict) -> Float[Tensor, "M V"]:
        head = self.model.get_output_embeddings()
        is_large = len(head.weight) > LARGE_VOCABULARY
        is_plain = type(head) is torch.nn.Linear and head.bias is None and not self.autocast_weights
        if not (is_large and is_plain):
            return super()._model_logits(keywords)
        hidden = self.model.base_model(self.prefixes.last_token, **keywords).last_hidden_state
        return head_logits(hidden[:, -1], head.weight)

    def draw_completions(self, max_new_tokens: int) -> int:
        """Draw until all rows have ended, at most `max_new_tokens` tokens of each; return the number of token steps.

        Between two steps, `regroup_rows` replaces the active rows and their prefixes. A step reads only columns that
        are written.
        """
        for num_token_steps in range(1, max_new_tokens + 1):
            if num_token_steps > 1:
                self.regroup_rows()
            self.cache.num_read_columns = int(self.write_column) + 1  # columns written so far, and that of this step
            self.draw_next_tokens()
            self.update_episodes()
            if self.active_rows.done.all():
                return num_token_steps
        return max_new_tokens

    def regroup_rows(self) -> None:
        """Remove the rows that have ended, and give rows that drew different tokens different prefixes."""
        rows, prefixes = self.active_rows, self.prefixes
        is_active = ~rows.done
        row_index = rows.row_index[is_active]
        vocab_size = self.model.config.vocab_size
        # A pair is a prefix and the token after it; its code is one number.
        pair_codes = rows.prefix_of_row[is_active] * vocab_size + self.sequences[row_index, self.write_column]
        pair_codes, prefix_of_row = pair_codes.unique(return_inverse=True)
        if isinstance(self.cache, PreallocatedCache):
            order = order_keeping_parents(pair_codes // vocab_size)
            pair_codes, prefix_of_row = pair_codes[order], order.argsort()[prefix_of_row]
        parent = pair_codes // vocab_size
        position, readable_columns = prefixes.position, prefixes.readable_columns
        if not torch.equal(parent, torch.arange(len(position), device=parent.device)):
            position, readable_columns = position[parent], readable_columns[parent]
            self.cache.continue_prefixes(parent)
        self.active_rows = ActiveRows(
            row_index,
            prefix_of_row,
            done=rows.done[is_active],
            forced_token=None if rows.forced_token is None else rows.forced_token[is_active],
        )
        self.prefixes = Prefixes(
            representative_row=torch.empty_like(parent).scatter(0, prefix_of_row, row_index),
            last_token=pair_codes[:, None] % vocab_size,
            position=position,
            readable_columns=readable_columns,
        )

    def draw_from(self, log_pi: Float[Tensor, "M V"], pi: Float[Tensor, "M V"]) -> Int[Tensor, " B"]:
        """Draw the next token of every row with one random number per row.

        A random number is drawn for rows that have left as well, so that the draws of the other rows do not change.
        """
        rows = self.active_rows
        u = torch.rand(self.spec.num_random_rows, dtype=torch.float64)
        index = rows.row_index if self.first_row is None else rows.row_index + self.first_row
        return inverse_cdf(pi, u[index], rows.prefix_of_row)


def inverse_cdf(
    pi: Float[Tensor, "M V"], u: Float64[Tensor, " B"], distribution_index: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Draw one token per row with one random number u: the first token whose cumulative probability is above u.

    The M cumulative distributions are stacked into one ascending sequence, number m from m to m + 1, so that one search
    serves all rows.

    Args:
        pi: Probabilities of M distributions; each is scaled here so that its sum is 1.
        u: Uniform random numbers in [0, 1), one per row, in float64: with the 24 bits of a float32, rare tokens would
            be drawn too seldom.
        distribution_index: Index of the distribution that each row draws from, 0 to M - 1.

    Returns:
        Token ids, shape (B,).

    Source: Devroye (1986), "Non-Uniform Random Variate Generation", section III.2.
    """
    vocab_size = pi.shape[1]
    just_below_next = (distribution_index + torch.ones_like(u)).nextafter(torch.zeros_like(u))
    point = torch.minimum(distribution_index + u, just_below_next)  # m + u, which may be rounded up to m + 1
    if vocab_size <= LARGE_VOCABULARY:
        token = torch.searchsorted(_stacked_cdf(pi), point, right=True) - distribution_index * vocab_size
    else:
        # Draw a block, then a token in it: the cumulative sums of all tokens would be ten times the work of the sums of
        # blocks.
        blocks = pad(pi, (0, -vocab_size % SEARCH_BLOCK)).unflatten(1, (-1, SEARCH_BLOCK))
        num_blocks = blocks.shape[1]
        stacked_cdf = _stacked_cdf(blocks.sum(-1))
        block = torch.searchsorted(stacked_cdf, point, right=True) - distribution_index * num_blocks
        block = block.clamp(0, num_blocks - 1)
        index = distribution_index * num_blocks + block
        lower = torch.where(block > 0, stacked_cdf[index - 1], distribution_index)
        u_in_block = ((point - lower) / (stacked_cdf[index] - lower)).clamp(0, 1)
        rows = torch.arange(len(u), device=u.device)
        token = block * SEARCH_BLOCK + inverse_cdf(blocks[distribution_index, block], u_in_block, rows)
    return token.clamp(0, vocab_size - 1)  # only NaN needs the clamp; the check of the log-probabilities reports it


def _stacked_cdf(pi: Float[Tensor, "M V"]) -> Float64[Tensor, " MV"]:
    """Return M cumulative distributions as one ascending sequence, in which number m goes from m to m + 1."""
    cdf = pi.cumsum(-1, dtype=torch.float64)
    offsets = torch.arange(len(cdf), device=cdf.device)[:, None]
    return cdf.div_(cdf[:, -1:].clone()).add_(offsets).flatten()
