"""Would a function run on a GPU? Torch's fake tensors tell, without one: they have a shape and a device, no numbers.

A function that makes a CPU tensor on its way, as `torch.arange(T)` without a device does, fails with them where it
would fail on a GPU. Whatever else goes wrong with them, as a branch on a value that they do not have, says nothing.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from grpo_lab.course.checking.outcome import inputs
from grpo_lab.course.exercise import Exercise

_LOG = logging.getLogger("torch._subclasses.fake_tensor")
REMARK = (
    "One remark, which costs nothing: on a GPU this would fail, as tensors of two devices meet. Make new tensors on "
    "the device of the arguments, as x.new_zeros(...), torch.zeros_like(x) or device=x.device do."
)


def remark(function: Callable, exercise: Exercise, seed: int) -> str:
    """What to say about devices; "" if there is nothing to say. The reference is asked first whether it would run."""
    cases = [index for index, case in enumerate(exercise.cases) if case.tests == "values"]
    for index in cases:
        if _mixes_devices(function, exercise, index, seed) and not _mixes_devices(
            exercise.function, exercise, index, seed
        ):
            return REMARK
    return ""


def _mixes_devices(function: Callable, exercise: Exercise, index: int, seed: int) -> bool:
    bound, _ = inputs(exercise, index, seed)
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(dict(bound.arguments))):
        return False
    _LOG.disabled = True  # torch logs what it cannot compute without numbers, and here that is no error
    try:
        with FakeTensorMode():
            bound.arguments.update(tree_map_only(Tensor, _on_gpu, dict(bound.arguments)))
            result = function(*bound.args, **bound.kwargs)
    except Exception as error:
        return "same device" in str(error) or "two different devices" in str(error)
    finally:
        _LOG.disabled = False
    left = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.device.type == "cpu"]
    return any(leaf.dim() for leaf in left)


def _on_gpu(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
