"""Try a function on a pretended accelerator: real numbers, but every tensor says that it lies on another device.

A tensor here lives on the CPU inside a wrapper whose device is "meta". A function that makes a CPU tensor on its way,
as `torch.arange(T)` without a device does, then mixes two devices exactly as it would on a card, and fails exactly
where it would fail there: in an operation on both, or in a result that has been left behind.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from grpo_lab.course.checking.outcome import Outcome, inputs
from grpo_lab.course.checking.plain_data import identical, plain
from grpo_lab.course.exercise import Exercise

_CPU, _MOST_NUMBERS = torch.device("cpu"), 20_000
_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)


class Mixed(RuntimeError):
    """An operation on tensors of two devices."""


@dataclass(frozen=True)
class Trial:
    """device: what goes wrong on another device, as "" (nothing), "mixed: ..." or "left behind". Any other trouble with
    the pretence is "unknown: ...": it says nothing about the function.
    changed: as in `Outcome`; here no argument carries a gradient, and a function may ask for that before it writes.
    """

    device: str
    changed: dict[str, Any] = field(default_factory=dict)

    def told(self, outcome: Outcome) -> Outcome:
        """The outcome on the same case, with what the trial adds to it."""
        return replace(outcome, device=self.device, changed=self.changed | outcome.changed)


def trial(function: Callable, exercise: Exercise, index: int, seed: int) -> Trial:
    bound, _ = inputs(exercise, index, seed)
    given = dict(bound.arguments)
    leaves = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
    if not leaves or sum(leaf.numel() for leaf in leaves) > _MOST_NUMBERS:
        return Trial("unknown: no tensors among the arguments, or too many numbers")
    bound.arguments.update(tree_map_only(Tensor, lambda t: OnCard(t.detach().clone()), given))
    lent = dict(bound.arguments)
    try:
        with _Makers(), _Card():
            result = function(*bound.args, **bound.kwargs)
    except Mixed as error:
        return Trial(f"mixed: {error}")
    except Exception as error:
        return Trial(f"unknown: {type(error).__name__}: {error}"[:300])
    now = {name: plain(lent[name].inner) for name, value in given.items() if isinstance(value, Tensor)}
    changed = {name: value for name, value in now.items() if not identical(plain(given[name]), value)}
    left = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and not isinstance(leaf, OnCard)]
    return Trial("left behind" if left else "", changed)


def warm_up() -> None:
    """The first operation of the pretence imports much; that time is not the student's."""
    with _Makers(), _Card():
        OnCard(torch.ones(2)) + torch.ones(2, device="meta")


class OnCard(Tensor):
    """A CPU tensor that says it is on the device "meta"."""

    @staticmethod
    def __new__(cls, inner: Tensor):
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device="meta",
        )  # fmt: skip

    def __init__(self, inner: Tensor):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})

    def tolist(self) -> Any:
        return self.inner.tolist()

    def new_tensor(
        self, data: Any, dtype: torch.dtype | None = None, device=None, requires_grad: bool = False
    ) -> Tensor:
        made = self.inner.new_tensor(data, dtype=dtype, requires_grad=requires_grad)
        return made if device is not None and torch.device(device).type == "cpu" else OnCard(made)

    def numpy(self, **kwargs):
        raise Mixed("numpy() of a tensor on a card; it needs .cpu() first")

    def __repr__(self) -> str:
        return f"OnCard({self.inner})"


class _Card(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        here = _device(kwargs) == "meta" or any(isinstance(leaf, OnCard) for leaf in tree_leaves((args, kwargs)))
        return _run(operation, args, kwargs) if here else operation(*args, **kwargs)


class _Makers(TorchFunctionMode):
    """`torch.tensor([...], device=d)` and `x.new_tensor([...])` skip the numbers of "meta", so they are taken apart."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is Tensor.new_tensor and isinstance(args[0], OnCard) and _device(kwargs) is None:
            return OnCard(function(args[0].inner, *args[1:], **kwargs))
        if function in _MAKERS and _device(kwargs) == "meta":
            if isinstance(args[0], OnCard):
                return args[0]
            return OnCard(function(*args, **{**kwargs, "device": _CPU}))
        return function(*args, **kwargs)


def _run(operation, args: tuple, kwargs: dict) -> Any:
    """Do the operation on the CPU, and label its result with the device that it would have."""
    found = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_card = [leaf for leaf in found if isinstance(leaf, OnCard)]
    elsewhere = [leaf for leaf in found if not isinstance(leaf, OnCard) and leaf.dim() > 0]
    if on_card and elsewhere and not _allowed(operation, args):
        raise Mixed(f"{operation._schema.name.removeprefix('aten::')} of a tensor on the card and one on the CPU")
    device = _device(kwargs) or ("meta" if on_card else "cpu")
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": _CPU}
    result = operation(*tree_map_only(OnCard, _inner, args), **tree_map_only(OnCard, _inner, kwargs))
    if operation._schema.is_mutable and args and isinstance(args[0], Tensor):
        return args[0]
    return tree_map_only(Tensor, OnCard, result) if device == "meta" else result


def _allowed(operation, args: tuple) -> bool:
    """A copy may cross devices, and a tensor on the card may be indexed by one on the CPU."""
    name = str(operation._schema.name)
    return name == "aten::copy_" or (name in ("aten::index", "aten::index_put_") and isinstance(args[0], OnCard))


def _inner(tensor: OnCard) -> Tensor:
    return tensor.inner


def _device(kwargs: dict) -> str | None:
    device = kwargs.get("device")
    return torch.device(device).type if device is not None else None
