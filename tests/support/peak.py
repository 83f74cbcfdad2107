"""Measure the peak bytes of live tensors during a call, beyond the tensors that were alive before it."""

import weakref
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_of_live_tensors(call: Callable[[], object]) -> int:
    """Return the peak bytes of the results of operations, which is the same on every kind of processor."""
    with LiveStorages() as live_storages:
        call()
    return live_storages.peak


class LiveStorages(TorchDispatchMode):
    """A context that counts the bytes of all live storages that its operations have made; `peak` is their maximum.

    A view shares the storage of its tensor. Tensors saved by autograd are alive as long as their graph.
    """

    def __init__(self):
        super().__init__()
        self.alive, self.live_bytes, self.peak = {}, 0, 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self._update_peak()
        input_storages = {id(tensor.untyped_storage()) for tensor in tensors((arguments, keywords))}
        result = function(*arguments, **(keywords or {}))
        for tensor in tensors(result):
            if id(tensor.untyped_storage()) not in input_storages:
                self._add_storage(tensor.untyped_storage())
        if function is torch.ops.aten.logsumexp.default:
            self._update_peak(extra=arguments[0].nbytes)  # the exponentials, which no operation returns
        elif not _autograd_adds_up(function):
            self._update_peak()
        return result

    def _update_peak(self, extra: int = 0):
        self.peak = max(self.peak, self.live_bytes + extra)

    def _add_storage(self, storage):
        name, size = id(storage), storage.nbytes()
        if name not in self.alive:
            self.alive[name] = weakref.ref(storage, lambda _: self._remove_storage(name, size))
            self.live_bytes += size

    def _remove_storage(self, name, size):
        del self.alive[name]
        self.live_bytes -= size


def _autograd_adds_up(function) -> bool:
    """Return whether autograd accumulates a gradient by this operation.

    Without a dispatch mode, autograd accumulates in place. With one it makes a new sum and frees the old term, so the
    peak is updated only when the next operation begins.
    """
    in_backward = torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()
    return in_backward and function is torch.ops.aten.add.Tensor


def tensors(values) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
