"""The key-value cache of decoding, and attention with one query per head; both make few copies in memory.

- The cache is written in place. The index of the column to write is one tensor that all layers share.
- Keys and values are never repeated for the query heads that share them (7 heads in Qwen2-0.5B). If there is a mask,
  transformers copies the whole cache for each of these heads at every step.
"""

from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AttentionInterface

from grpo_lab.rollout.forward.attention import attention_dtype, gather_tokens, use_attention
from grpo_lab.rollout.forward.packing import PromptCache
from grpo_lab.rollout.model import head_dim


class InPlaceCache:
    """Keys and values of all layers in fixed memory, of which a step writes one column; layers call only `update`.

    The cache has a place for each prefix, and a column for each token of a prefix.

    Args:
        model: The model whose layers read and write the cache.
        num_prefixes: M, number of prefixes.
        num_columns: Number of columns in memory.
        write_column: Index of the column that the next `update` writes. The caller moves it in place.
    """

    def __init__(self, model, num_prefixes: int, num_columns: int, write_column: Int[Tensor, "1"]):
        config = model.config
        self.write_column = write_column
        self.dtype = attention_dtype(model)
        self.num_read_columns = num_columns  # attention reads the first ones; the caller may lower their number
        shape = (num_prefixes, config.num_key_value_heads, num_columns, head_dim(config))
        self.keys, self.values = (
            [torch.zeros(shape, dtype=self.dtype, device=model.device) for _ in range(config.num_hidden_layers)]
            for _ in range(2)
        )

    def update(self, keys: Tensor, values: Tensor, layer: int, *_, **__) -> tuple[Tensor, Tensor]:
        # Under autocast the rotated keys are float32. They are rounded once here; attention would do it at every step.
        self.keys[layer].index_copy_(2, self.write_column, keys.to(self.dtype))
        self.values[layer].index_copy_(2, self.write_column, values.to(self.dtype))
        return self.keys[layer][:, :, : self.num_read_columns], self.values[layer][:, :, : self.num_read_columns]

    def load(self, prompt_cache: PromptCache | None, prefixes_per_prompt: int) -> None:
        """Clear the cache, then copy the keys and values of the prompts into it.

        prompt_cache: The result of `packed_prompts`; None leaves the cache empty.
        prefixes_per_prompt: Number of consecutive prefixes that begin with each prompt.
        """
        for tensor in (*self.keys, *self.values):
            tensor.zero_()  # a masked column has weight 0, but 0 times NaN is NaN
        if prompt_cache is None:
            return
        packed_cache, prefix_index = prompt_cache
        for layer, keys, values in zip(packed_cache.layers, self.keys, self.values, strict=True):
            for source, target in ((layer.keys, keys), (layer.values, values)):
                gathered = gather_tokens(source, prefix_index, self.dtype)
                target[:, :, : prefix_index.shape[1]] = gathered.repeat_interleave(prefixes_per_prompt, 0)

    def continue_prefixes(self, parent: Int[Tensor, " M"]) -> None:
        """Replace the prefixes by M new ones, each of which continues one of them. Copies one layer at a time.

        parent: Index of the prefix that each new prefix continues; several may continue the same one, others none.
        """
        for layers in (self.keys, self.values):
            for layer, tensor in enumerate(layers):
                layers[layer] = tensor.index_select(0, parent)


class PreallocatedCache(InPlaceCache):
    """A cache with memory for more prefixes than it holds, so that a prefix keeps its place when others come or go.

    Args:
        num_prefixes: Number of prefixes at the start.
        max_prefixes: Number of prefixes in memory.
        model, num_columns, write_column: The arguments of `InPlaceCache`.
    """

    def __init__(self, model, num_prefixes: int, max_prefixes: int, num_columns: int, write_column: Int[Tensor, "1"]):
        super().__init__(model, max_prefixes, num_columns, write_column)
        self._memory = (self.keys, self.values)
        self.keys, self.values = ([tensor[:num_prefixes] for tensor in tensors] for tensors in self._memory)

    def continue_prefixes(self, parent: Int[Tensor, " M"]) -> None:
        """Do what `InPlaceCache` does, but copy only the new prefixes that are not in the place of their parent."""
        moved_places = (parent != torch.arange(len(parent), device=parent.device)).nonzero()[:, 0]
        source_places = parent[moved_places]
        for layers, tensors in zip((self.keys, self.values), self._memory, strict=True):
            for layer, tensor in enumerate(tensors):
                written_columns = tensor[:, :, : self.num_read_columns]
                if len(moved_places):
                    written_columns.index_copy_(0, moved_places, written_columns.index_select(0, source_places))
                layers[layer] = tensor[: len(parent)]


def order_keeping_parents(parent: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
    """Return an order of new prefixes in which as many as possible keep the place of their parent.

    The first child of a prefix takes its place, if that is one of the first M places. The other children take the
    places of prefixes without children. So no place is read after it has been written.

    parent: Index of the old prefix that each new prefix continues, in ascending order.

    Returns:
        A permutation: the index of the new prefix that takes each place.
    """
    num_places = len(parent)
    is_first_child = torch.ones_like(parent, dtype=torch.bool)
    is_first_child[1:] = parent[1:] != parent[:-1]
    stays = is_first_child & (parent < num_places)
    is_free = torch.ones_like(stays)
    is_free[parent[stays]] = False
    target_place = torch.empty_like(parent)
    target_place[stays] = parent[stays]
    target_place[~stays] = is_free.nonzero()[:, 0]
    return target_place.argsort()


def one_query_attention(module, query, key, value, attention_mask, scaling=None, **_):
    """Attend with one query per head. The R heads that share a key head are stacked, so no key is repeated."""
    num_prefixes, heads, _, head_dim = query.shape
    grouped = query.reshape(num_prefixes, key.shape[1], heads // key.shape[1], head_dim)
    out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(num_prefixes, 1, heads, head_dim), None


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
