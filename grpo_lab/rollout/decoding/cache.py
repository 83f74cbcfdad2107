"""The key-value cache of decoding, and attention with one query per head; both make few copies in memory.

- The cache is written in place. The index of the column to write is one tensor that all layers share.
- Keys and values are never repeated for the query heads that share them (7 heads in Qwen2-0.5B). If there is a mask,
  transformers copies the whole cache for each of these heads at every step.
"""

from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AttentionInterface, Cache

from grpo_lab.rollout.forward.attention import attention_dtype, gather_tokens, use_attention
from grpo_lab.rollout.model_config import head_dim


class InPlaceCache:
    """Keys and values of all layers in fixed memory, of which a step writes one column; layers call only `update`.

    Args:
        model: The model whose layers read and write the cache.
        num_rows: Number of rows of the batch.
        capacity: Number of columns in memory.
        write_column: Index of the column that the next `update` writes. The caller moves it in place.
    """

    def __init__(self, model, num_rows: int, capacity: int, write_column: Int[Tensor, "1"]):
        config = model.config
        self.write_column = write_column
        self.dtype = attention_dtype(model)
        self.num_columns = capacity  # number of columns that attention reads
        shape = (num_rows, config.num_key_value_heads, capacity, head_dim(config))
        self.keys, self.values = (
            [torch.zeros(shape, dtype=self.dtype, device=model.device) for _ in range(config.num_hidden_layers)]
            for _ in range(2)
        )

    def update(self, keys: Tensor, values: Tensor, layer: int, *_, **__) -> tuple[Tensor, Tensor]:
        # Under autocast the rotated keys are float32. They are rounded once here; attention would do it at every step.
        self.keys[layer].index_copy_(2, self.write_column, keys.to(self.dtype))
        self.values[layer].index_copy_(2, self.write_column, values.to(self.dtype))
        return self.keys[layer][:, :, : self.num_columns], self.values[layer][:, :, : self.num_columns]

    def load(self, prompt_cache: tuple[Cache, Int[Tensor, "P L"]] | None, copies_per_prompt: int) -> None:
        """Clear the cache, then copy the keys and values of the prompts into it.

        prompt_cache: The result of `packed_prompts`; None leaves the cache empty.
        copies_per_prompt: Number of consecutive rows that begin with each prompt.
        """
        for tensor in (*self.keys, *self.values):
            tensor.zero_()  # a masked column has weight 0, but 0 times NaN is NaN
        if prompt_cache is None:
            return
        packed_cache, prefix_index = prompt_cache
        for layer, keys, values in zip(packed_cache.layers, self.keys, self.values, strict=True):
            for source, target in ((layer.keys, keys), (layer.values, values)):
                gathered = gather_tokens(source, prefix_index, self.dtype)
                target[:, :, : prefix_index.shape[1]] = gathered.repeat_interleave(copies_per_prompt, 0)

    def select_rows(self, rows: Int[Tensor, " B"]) -> None:
        """Keep only these rows, in this order; a row may occur several times. Copies one layer at a time."""
        for layers in (self.keys, self.values):
            for layer, tensor in enumerate(layers):
                layers[layer] = tensor.index_select(0, rows)


class PreallocatedCache(InPlaceCache):
    """A cache with memory for more rows than it holds, so that a row keeps its place when others come or go.

    Args:
        num_rows: Number of rows at the start.
        max_rows: Number of rows in memory.
        model, capacity, write_column: The arguments of `InPlaceCache`.
    """

    def __init__(self, model, num_rows: int, max_rows: int, capacity: int, write_column: Int[Tensor, "1"]):
        super().__init__(model, max_rows, capacity, write_column)
        self._memory = (self.keys, self.values)
        self.keys, self.values = ([tensor[:num_rows] for tensor in tensors] for tensors in self._memory)

    def select_rows(self, rows: Int[Tensor, " B"]) -> None:
        """Keep only these rows, in this order; a row may occur several times. Copies only rows that change place."""
        moved_places = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        source_rows = rows[moved_places]
        for layers, tensors in zip((self.keys, self.values), self._memory, strict=True):
            for layer, tensor in enumerate(tensors):
                written_columns = tensor[:, :, : self.num_columns]
                if len(moved_places):
                    written_columns.index_copy_(0, moved_places, written_columns.index_select(0, source_rows))
                layers[layer] = tensor[: len(rows)]


def order_keeping_parents(parent: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return an order of the new rows of a batch in which as many as possible keep the place of their parent.

    The first child of a row takes its place, if that is one of the first B places. The other children take the places
    of rows without children. So no place is read after it has been written.

    parent: Index of the old row that each new row continues, in ascending order.

    Returns:
        A permutation: the index of the new row that takes each place.
    """
    count = len(parent)
    is_first = torch.ones_like(parent, dtype=torch.bool)
    is_first[1:] = parent[1:] != parent[:-1]
    stays = is_first & (parent < count)
    is_free = torch.ones_like(stays)
    is_free[parent[stays]] = False
    target_row = torch.empty_like(parent)
    target_row[stays] = parent[stays]
    target_row[~stays] = is_free.nonzero()[:, 0]
    return target_row.argsort()


def one_query_attention(module, query, key, value, attention_mask, scaling=None, **_):
    """Attend with one query per head. The R heads that share a key head are stacked, so no key is repeated."""
    rows, heads, _, head_dim = query.shape
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], head_dim)
    out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(rows, 1, heads, head_dim), None


AttentionInterface.register("grpo_lab_one_query", one_query_attention)


@contextmanager
def decoding_mode(model):
    """Decode inside this context with `one_query_attention`, and without autocast's weight cache.

    A CUDA graph would read the copies in the weight cache after they have been freed.
    """
    device_type = model.device.type
    autocast = torch.autocast(
        device_type, attention_dtype(model), torch.is_autocast_enabled(device_type), cache_enabled=False
    )
    with use_attention(model, "grpo_lab_one_query"), autocast:
        yield


def autocast_copies(model) -> dict[str, Tensor]:
    """Copy the weights of linear layers in autocast's precision, once per rollout and not at every step."""
    if not torch.is_autocast_enabled(model.device.type):
        return {}
    return {
        f"{name}.{part}": parameter.detach().to(attention_dtype(model))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        for part, parameter in module.named_parameters(recurse=False)
    }
