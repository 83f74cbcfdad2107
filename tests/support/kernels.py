"""Count the kernels that a call would start on a GPU, and how often the host would wait, on any processor."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that change only shape, strides or type of a tensor.
VIEWS = {
    "view", "_unsafe_view", "reshape", "slice", "select", "split", "split_with_sizes", "unsqueeze", "squeeze", "expand",
    "alias", "detach", "t", "transpose", "permute", "unbind", "as_strided", "empty", "new_empty", "empty_like",
    "_local_scalar_dense", "view_as", "unfold", "chunk", "diagonal", "empty_strided", "new_empty_strided",
}  # fmt: skip
# Operations that return a number to the host, or a result whose size depends on values.
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "unique_dim", "equal", "is_nonzero")


class KernelCounter(TorchDispatchMode):
    """A context that counts the operations that compute on tensors with more than one number."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    @property
    def count(self) -> int:
        return len(self.names)

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        name = function.name().split("::")[-1].split(".")[0]
        sizes = [leaf.numel() for leaf in torch.utils._pytree.tree_leaves((arguments, result)) if torch.is_tensor(leaf)]
        if name not in VIEWS and max(sizes, default=0) > 1:
            self.names.append(name)
        return result


class WaitCounter(TorchDispatchMode):
    """A context that counts the operations for which the host would wait for its GPU."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []
        self._lists = _Lists(self.names)

    @property
    def count(self) -> int:
        return len(self.names)

    def __enter__(self):
        self._lists.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._lists.__exit__(*error)

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.name().split("::")[-1].split(".")[0]
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            torch.is_tensor(index) and index.dtype == torch.bool for index in arguments[1]
        )
        if name in WAITS or by_mask:
            self.names.append(name)
        return function(*arguments, **(keywords or {}))


class _Lists(TorchFunctionMode):
    """Counts calls of `tolist`, which is no operation of the dispatcher on a CPU."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        if function is torch.Tensor.tolist:
            self.names.append("tolist")
        return function(*arguments, **(keywords or {}))
