"""Attention of long rows without a mask, which would grow with the square of their length.

The queries of a row are its last tokens and look at all tokens up to themselves, so a kernel that is causal needs no
mask, only the lengths: the tokens of the rows stand one after the other, without padding. On a GPU in half precision
one kernel takes all rows, `varlen_attn`. Elsewhere each row is a call of its own.
"""

import inspect
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

LONGEST_MASKED = 1024  # tokens of a row, with its padding; beyond it a mask takes more than what it saves
VARLEN, BY_ROW = "varlen_attn", "a call for each row"
HALF = (torch.bfloat16, torch.float16)  # the precisions of the flash kernels


def kernel_of_long_rows(device_type: str, dtype: torch.dtype) -> str:
    """`VARLEN` on a GPU in half precision; else `BY_ROW`."""
    return VARLEN if device_type == "cuda" and dtype in HALF else BY_ROW


def key_copies(device_type: str, dtype: torch.dtype, heads_per_key: int) -> int:
    """How many times each key stands in memory: as often as heads share it, where the kernel knows no shared heads."""
    shares = varlen_shares_key_heads() if kernel_of_long_rows(device_type, dtype) == VARLEN else device_type != "cuda"
    return 1 if shares else heads_per_key


def describe_attention(length: int, device_type: str, dtype: torch.dtype) -> str | None:
    """Say in words what attends in a run whose rows have at most so many tokens; None where a mask is used."""
    if length <= LONGEST_MASKED:
        return None
    kernel = kernel_of_long_rows(device_type, dtype)
    precision = str(dtype).removeprefix("torch.")
    return f"rows of more than {LONGEST_MASKED:,} tokens need no mask: {kernel}, in {precision}"


@dataclass(frozen=True)
class LongRows:
    """Rows of tokens that attend to each other, each token by its index in a packed sequence, without padding."""

    query_index: Int[Tensor, " N"]  # row after row; those of a row are its last tokens
    key_index: Int[Tensor, " M"]
    query_offsets: Int[Tensor, " E"]  # E = rows + 1, int32: where each begins and ends, as `varlen_attn` takes them
    key_offsets: Int[Tensor, " E"]
    query_lengths: list[int]
    key_lengths: list[int]
    dtype: torch.dtype
    flat_query_index: Int[Tensor, " N"]  # where each query stands among those of all rows, with padding
    padded_queries: int  # C, how many those are

    def attend(self, query, key, value, scaling: float | None = None) -> Float[Tensor, "C H D_h"]:
        """The output of each query; zeros at padding."""
        key, value = (_tokens(x, self.key_index, self.dtype) for x in (key, value))
        query = _tokens(query, self.query_index, self.dtype)
        attend = attend_varlen if kernel_of_long_rows(query.device.type, self.dtype) == VARLEN else attend_by_row
        out = attend(query, key, value, self, scaling) if self.query_lengths else query
        return out.new_zeros(self.padded_queries, *out.shape[1:]).index_copy(0, self.flat_query_index, out)


def long_rows(
    prefix_index: Int[Tensor, "B S"], is_token: Bool[Tensor, "B S"], queries: int, dtype: torch.dtype
) -> LongRows:
    """The rows, of which the last Q columns are queries; a row that has none there is left out."""
    is_query = is_token[:, -queries:]
    lengths = torch.stack([is_query.sum(1), is_token.sum(1) * is_query.any(1)])  # 2 B
    lengths = lengths[:, lengths[0] > 0]
    query_offsets, key_offsets = pad(lengths.cumsum(1), (1, 0)).int()
    query_lengths, key_lengths = lengths.tolist()
    return LongRows(
        query_index=prefix_index[:, -queries:][is_query],
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
    """Attention of all rows by one kernel, which aligns the last query of a row with its last key."""
    from torch.nn.attention.varlen import varlen_attn

    keywords = {}
    if varlen_shares_key_heads():
        keywords["enable_gqa"] = True
    else:
        key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    offsets_and_lengths = (rows.query_offsets, rows.key_offsets, max(rows.query_lengths), max(rows.key_lengths))
    return varlen_attn(query, key, value, *offsets_and_lengths, scale=scaling, window_size=(-1, 0), **keywords)


def attend_by_row(
    query: Float[Tensor, "N H D_h"],
    key: Float[Tensor, "M K D_h"],
    value: Float[Tensor, "M K D_h"],
    rows: LongRows,
    scaling: float | None = None,
) -> Float[Tensor, "N H D_h"]:
    """Attention of all rows by torch's own, a row at a time.

    It aligns the first query with the first key, so before the queries of a row stand as many of zeros as it lacks.
    """
    outputs = []
    heads_per_key = query.shape[1] // key.shape[1]
    by_row = (query.split(rows.query_lengths), key.split(rows.key_lengths), value.split(rows.key_lengths))
    for row_query, row_key, row_value in zip(*by_row, strict=True):
        lacking = len(row_key) - len(row_query)
        inputs = [pad(row_query, (0, 0, 0, 0, lacking, 0)), row_key, row_value]
        if query.is_cuda:  # whose kernels without a mask repeat no key by themselves
            inputs[1:] = [x.repeat_interleave(heads_per_key, 1) for x in inputs[1:]]
        inputs = [x.transpose(0, 1)[None] for x in inputs]  # 1 H S W
        out = scaled_dot_product_attention(*inputs, is_causal=True, scale=scaling, enable_gqa=not query.is_cuda)
        outputs.append(out[0].transpose(0, 1)[lacking:])
    return torch.cat(outputs)


def _tokens(x: Float[Tensor, "1 H N D_h"], index: Int[Tensor, " S"], dtype: torch.dtype) -> Float[Tensor, "S H D_h"]:
    return x[0].transpose(0, 1).to(dtype).index_select(0, index)


@cache
def varlen_shares_key_heads() -> bool:
    """True if several query heads may have one key head in this torch's `varlen_attn`: not yet in torch 2.11."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters
