"""Attention in a packed sequence (packing.py): rows gathered from it attend with a mask, long rows without one.

In short rows (`MaskedRows`), all layers share one mask. In transformers, each layer turns a boolean mask into an
additive one and keeps it for the backward pass: 24 layers keep 24 copies of a B x Q x S tensor.

In long rows (`LongRows`), a mask would grow with the square of the length. The queries of a row are its last tokens,
and each attends to all tokens up to itself. So a causal kernel needs no mask. It needs only the lengths of the rows,
whose tokens follow one another without padding. On a GPU in half precision, one call of `varlen_attn` computes all
rows. Elsewhere each row is one call of torch's `scaled_dot_product_attention`.

Attention uses only those kernels of torch that need no new plan for each shape.
"""

import inspect
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

_ALIGNMENT = 8  # rows of the mask start at multiples of this number of columns; else every layer would copy the mask
LONGEST_MASKED = 1024  # tokens of a row with its padding; for longer rows a mask costs more than it saves
VARLEN, BY_ROW = "varlen_attn", "a call for each row"
VARLEN_PRECISIONS = (torch.bfloat16, torch.float16)  # the precisions that `varlen_attn` supports


def attention_dtype(model) -> torch.dtype:
    """Return the precision in which attention is computed: autocast's if it is on, else that of the weights."""
    device_type = model.device.type
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else model.dtype


def select_tokens(
    x: Float[Tensor, "1 H N D_h"], index: Int[Tensor, " M"], dtype: torch.dtype
) -> Float[Tensor, "M H D_h"]:
    """Select from a packed sequence the keys (or queries, or values) of all heads at the tokens with these indices."""
    return x[0].transpose(0, 1).to(dtype).index_select(0, index)


def gather_tokens(
    x: Float[Tensor, "1 H N D_h"], index: Int[Tensor, "B S"], dtype: torch.dtype
) -> Float[Tensor, "B H S D_h"]:
    """Gather rows of tokens from a packed sequence, as `select_tokens` does, in the form that kernels of torch take."""
    by_token = select_tokens(x, index.flatten(), dtype)
    return by_token.view(*index.shape, *by_token.shape[1:]).transpose(1, 2)


@contextmanager
def use_attention(model, name: str):
    """Inside this context, let the model compute attention by the function that is registered under `name`."""
    previous, model.config._attn_implementation = model.config._attn_implementation, name
    try:
        with _without_cudnn(model.device.type):
            yield
    finally:
        model.config._attn_implementation = previous


def _without_cudnn(device_type: str) -> AbstractContextManager:
    """Exclude cuDNN's attention kernel on a GPU: it plans each new shape for 25 to 35 ms."""
    backends = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(backends) if device_type == "cuda" else nullcontext()


class MaskedRows(NamedTuple):
    """Rows of tokens of a packed sequence; each token attends to itself and the earlier tokens of its row.

    The last Q tokens of a row are its queries. The R query heads that share a key head are stacked, so no key is
    repeated.
    """

    token_index: Int[Tensor, "B S"]  # index of each token in the packed sequence; any number at padding
    mask: Float[Tensor, "B 1 RQ S"]  # added to the scores; hides padding and later tokens

    def attend(self, query, key, value, scaling: float | None) -> Float[Tensor, "BQ H D_h"]:
        """Return the output of attention for each query, one row after the other."""
        heads, key_heads, head_dim = query.shape[1], key.shape[1], query.shape[3]
        rows = len(self.token_index)
        num_queries = self.mask.shape[2] * key_heads // heads
        gathered_queries = gather_tokens(query, self.token_index[:, -num_queries:], self.mask.dtype)
        gathered_queries = gathered_queries.reshape(rows, key_heads, -1, head_dim)
        keys, values = (gather_tokens(x, self.token_index, self.mask.dtype) for x in (key, value))
        out = scaled_dot_product_attention(gathered_queries, keys, values, attn_mask=self.mask, scale=scaling)
        return out.reshape(rows, heads, num_queries, head_dim).transpose(1, 2).flatten(0, 1)  # B*Q H D_h


def additive_mask(
    is_token: Bool[Tensor, "B S"], num_queries: int, dtype: torch.dtype, heads_per_key: int = 1
) -> Float[Tensor, "B 1 RQ S"]:
    """Return the additive attention mask: 0 where a query may attend, minus infinity elsewhere.

    A query attends to the tokens up to its own position, and always to itself, so that no row of the mask is empty.

    Args:
        is_token: False at padding.
        num_queries: Q, number of queries: the last Q columns of each row.
        dtype: The precision of the mask.
        heads_per_key: R, number of query heads that share a key head. The mask repeats its Q rows for each of them.
    """
    rows, length = is_token.shape
    key = torch.arange(length, device=is_token.device)
    query = key[length - num_queries :, None]
    allowed = (key <= query) & (is_token[:, None] | (key == query))  # B Q S
    shape = (rows, 1, heads_per_key, num_queries, aligned_columns(length))
    mask = torch.empty(shape, dtype=dtype, device=is_token.device)[..., :length]
    return mask.fill_(-torch.inf).masked_fill_(allowed[:, None, None], 0).flatten(2, 3)


def aligned_columns(length: int) -> int:
    """Return the number of columns that a row of the mask takes in memory, so that kernels need no copy of it."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def kernel_of_long_rows(device_type: str, dtype: torch.dtype) -> str:
    """Return the name of the kernel for long rows: `VARLEN` on a GPU in half precision, else `BY_ROW`."""
    return VARLEN if device_type == "cuda" and dtype in VARLEN_PRECISIONS else BY_ROW


def key_copies(device_type: str, dtype: torch.dtype, heads_per_key: int) -> int:
    """Return the number of copies of each key that the kernel for long rows needs in memory.

    It is 1 if the kernel lets several query heads share a key head, else `heads_per_key`.
    """
    shares = varlen_shares_key_heads() if kernel_of_long_rows(device_type, dtype) == VARLEN else device_type != "cuda"
    return 1 if shares else heads_per_key


def describe_attention(length: int, device_type: str, dtype: torch.dtype) -> str | None:
    """Describe, in a line, the attention of a run whose rows have at most `length` tokens; None if it uses a mask."""
    if length <= LONGEST_MASKED:
        return None
    kernel = kernel_of_long_rows(device_type, dtype)
    precision = str(dtype).removeprefix("torch.")
    return f"rows of more than {LONGEST_MASKED:,} tokens need no mask: {kernel}, in {precision}"


@dataclass(frozen=True)
class LongRows:
    """Rows of tokens of a packed sequence; each token attends to itself and the earlier tokens of its row.

    The queries of a row are its last tokens, its keys are all of its tokens. Both are listed row after row, without
    padding. With E = number of rows + 1, offsets say where each row begins and where the last one ends.
    """

    query_index: Int[Tensor, " N"]  # index of each query in the packed sequence
    key_index: Int[Tensor, " M"]  # index of each key in the packed sequence
    query_offsets: Int[Tensor, " E"]  # int32, since `varlen_attn` takes no other type
    key_offsets: Int[Tensor, " E"]  # int32
    query_lengths: list[int]  # number of queries of each row
    key_lengths: list[int]  # number of keys of each row
    dtype: torch.dtype  # precision of the attention
    flat_query_index: Int[Tensor, " N"]  # index of each query among the queries of all rows with padding
    padded_queries: int  # C, number of queries of all rows with padding

    def attend(self, query, key, value, scaling: float | None = None) -> Float[Tensor, "C H D_h"]:
        """Return the output of attention for each query; zeros at padding."""
        key, value = (select_tokens(x, self.key_index, self.dtype) for x in (key, value))
        query = select_tokens(query, self.query_index, self.dtype)
        attend = attend_varlen if kernel_of_long_rows(query.device.type, self.dtype) == VARLEN else attend_by_row
        out = attend(query, key, value, self, scaling) if self.query_lengths else query
        return out.new_zeros(self.padded_queries, *out.shape[1:]).index_copy(0, self.flat_query_index, out)


def make_long_rows(
    prefix_index: Int[Tensor, "B S"], is_token: Bool[Tensor, "B S"], num_queries: int, dtype: torch.dtype
) -> LongRows:
    """Make the `LongRows` of a batch, whose queries are the tokens in the last `num_queries` columns.

    A row without a token in these columns is left out.

    Args:
        prefix_index: Index of each token in the packed sequence; any number at padding.
        is_token: False at padding.
        num_queries: Q, number of columns with queries.
        dtype: The precision of the attention.
    """
    is_query = is_token[:, -num_queries:]
    lengths = torch.stack([is_query.sum(1), is_token.sum(1) * is_query.any(1)])  # 2 B
    lengths = lengths[:, lengths[0] > 0]
    query_offsets, key_offsets = pad(lengths.cumsum(1), (1, 0)).int()
    query_lengths, key_lengths = lengths.tolist()
    return LongRows(
        query_index=prefix_index[:, -num_queries:][is_query],
        key_index=prefix_index[is_token & is_query.any(1, keepdim=True)],
        query_offsets=query_offsets,
        key_offsets=key_offsets,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
        dtype=dtype,
        flat_query_index=is_query.flatten().nonzero()[:, 0],
        padded_queries=is_query.numel(),
    )


def attend_varlen(
    query: Float[Tensor, "N H D_h"],
    key: Float[Tensor, "M K D_h"],
    value: Float[Tensor, "M K D_h"],
    rows: LongRows,
    scaling: float | None = None,
) -> Float[Tensor, "N H D_h"]:
    """Attend in all rows with one call of `varlen_attn`, which aligns the last query of a row with its last key."""
    from torch.nn.attention.varlen import varlen_attn

    keywords: dict[str, Any] = {}
    if varlen_shares_key_heads():
        keywords["enable_gqa"] = True
    else:
        key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    offsets_and_lengths = (rows.query_offsets, rows.key_offsets, max(rows.query_lengths), max(rows.key_lengths))
    out = varlen_attn(query, key, value, *offsets_and_lengths, scale=scaling, window_size=(-1, 0), **keywords)
    assert isinstance(out, Tensor)  # a tuple only with `return_aux`
    return out


def attend_by_row(
    query: Float[Tensor, "N H D_h"],
    key: Float[Tensor, "M K D_h"],
    value: Float[Tensor, "M K D_h"],
    rows: LongRows,
    scaling: float | None = None,
) -> Float[Tensor, "N H D_h"]:
    """Attend in one row at a time with torch's `scaled_dot_product_attention`.

    It aligns the first query of a row with its first key. So the queries are padded with zeros in front, to as many
    queries as keys.
    """
    outputs = []
    heads_per_key = query.shape[1] // key.shape[1]
    by_row = (query.split(rows.query_lengths), key.split(rows.key_lengths), value.split(rows.key_lengths))
    for row_query, row_key, row_value in zip(*by_row, strict=True):
        num_missing = len(row_key) - len(row_query)
        inputs = [pad(row_query, (0, 0, 0, 0, num_missing, 0)), row_key, row_value]
        if query.is_cuda:  # the kernels of a GPU that take no mask do not repeat keys themselves
            inputs[1:] = [x.repeat_interleave(heads_per_key, 1) for x in inputs[1:]]
        q, k, v = (x.transpose(0, 1)[None] for x in inputs)  # 1 H S D_h; key and value have K heads on a CPU
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=not query.is_cuda)
        outputs.append(out[0].transpose(0, 1)[num_missing:])
    return torch.cat(outputs)


@cache
def varlen_shares_key_heads() -> bool:
    """Return True if query heads may share a key head in `varlen_attn` of the installed torch (2.11: not yet)."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters
