"""The most bytes of tensors that are alive at one time during a call, beyond those that were alive before it."""

import weakref
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_of_lives(call: Callable[[], object]) -> int:
    """The peak of what operations return, and no more: one number on every kind of processor."""
    with Lives() as lives:
        call()
    return lives.peak


class Lives(TorchDispatchMode):
    """Counts the bytes of all storages that operations inside it made and that are still alive.

    A view lives in the storage of what it shows, and what autograd saves is alive as long as its graph. `peak` is the
    most bytes at one time.
    """

    def __init__(self):
        super().__init__()
        self.alive, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self._look()
        input_storages = {id(tensor.untyped_storage()) for tensor in tensors((arguments, keywords))}
        result = function(*arguments, **(keywords or {}))
        for tensor in tensors(result):
            if id(tensor.untyped_storage()) not in input_storages:
                self._born(tensor.untyped_storage())
        if function is torch.ops.aten.logsumexp.default:
            self._look(beside=arguments[0].nbytes)  # the exponentials, on every device; no operation returns them
        elif not _autograd_adds_up(function):
            self._look()
        return result

    def _look(self, beside: int = 0):
        self.peak = max(self.peak, self.now + beside)

    def _born(self, storage):
        name, size = id(storage), storage.nbytes()
        if name not in self.alive:
            self.alive[name] = weakref.ref(storage, lambda _: self._died(name, size))
            self.now += size

    def _died(self, name, size):
        del self.alive[name]
        self.now -= size


def _autograd_adds_up(function) -> bool:
    """Autograd adds up gradients in place, but not while a dispatch mode looks on: then a term dies as the sum is born.

    So the sum is looked at when the next operation begins.
    """
    in_backward = torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()
    return in_backward and function is torch.ops.aten.add.Tensor


def tensors(values) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
