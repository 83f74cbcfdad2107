"""Simulate a GPU by fake tensors, which have shape, type and device "cuda", but no values.

Fake tensors compute nothing, so a model of any size runs in seconds. Reading a value raises an error, as it would while
a CUDA graph is captured. Only a real GPU shows which kernels exist and how exact they are.
"""

from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from transformers import Qwen2ForCausalLM
from transformers.initialization import no_init_weights

from grpo_lab.models.shapes import shape_config


@contextmanager
def fake_gpu():
    with FakeTensorMode(), _Indexing(), torch.device("cuda"), torch.no_grad():
        yield


def fake_qwen2(dtype: torch.dtype, layers: int = 24) -> Qwen2ForCausalLM:
    """Return Qwen2-0.5B, or its first layers, on the simulated GPU."""
    config = shape_config("qwen2")
    config.num_hidden_layers, config.layer_types = layers, config.layer_types[:layers]
    with no_init_weights():
        model = Qwen2ForCausalLM._from_config(config, dtype=dtype).eval()
    model.tie_weights()
    return model


class _Indexing(TorchFunctionMode):
    """Replaces indexing by operations, because a torch without CUDA cannot index tensors on "cuda"."""

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        if function is torch.Tensor.__getitem__:
            return _part(*arguments)
        if function is torch.Tensor.__setitem__:
            tensor, index, value = arguments
            part = _part(tensor, index)
            return torch.ops.aten.copy_(part, value) if isinstance(value, torch.Tensor) else part.fill_(value)
        return _OPERATIONS.get(function, function)(*arguments, **(keywords or {}))


# Methods of tensors that a torch without CUDA lacks on "cuda", and the operations that do the same.
_OPERATIONS = {
    torch.Tensor.copy_: torch.ops.aten.copy_,
    torch.Tensor.contiguous: torch.ops.aten.contiguous,
    torch.Tensor.__invert__: torch.ops.aten.bitwise_not,
}


def _part(tensor, index):
    index = index if isinstance(index, tuple) else (index,)
    if isinstance(index[0], torch.Tensor):
        return torch.ops.aten.index(tensor, list(index))
    if Ellipsis in index:
        ellipsis_index = index.index(Ellipsis)
        missing = tensor.dim() - sum(i is not None for i in index) + 1
        index = (*index[:ellipsis_index], *[slice(None)] * missing, *index[ellipsis_index + 1 :])
    axis = 0
    for i in index:
        if i is None:
            tensor = tensor.unsqueeze(axis)
        elif isinstance(i, slice):
            start, stop, step = i.indices(tensor.shape[axis])
            assert step == 1
            tensor = tensor.narrow(axis, start, max(stop - start, 0))
        else:
            tensor, axis = tensor.select(axis, i), axis - 1
        axis += 1
    return tensor
