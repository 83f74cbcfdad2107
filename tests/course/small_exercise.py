"""A small exercise for the tests. Its reference is a copy, so that answers may call the original `scaled_mean`."""

import inspect
from collections.abc import Callable
from types import FunctionType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_lab.course.exercise import Case, Exercise, wrong_function


def copy_of(function: Callable) -> FunctionType:
    """Return a copy of a function, which a check does not recognise as the library's."""
    bare = inspect.unwrap(function)
    copied = FunctionType(bare.__code__, bare.__globals__, bare.__name__, bare.__defaults__, bare.__closure__)
    copied.__kwdefaults__, copied.__annotations__ = bare.__kwdefaults__, bare.__annotations__
    copied.__doc__, copied.__module__ = bare.__doc__, bare.__module__
    return copied


def scaled_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], scale: float = 1.0) -> Float[Tensor, " B"]:
    r"""Mean over the tokens that count.

    n_b = \max(\sum_t m_{b,t}, 1) \tag{1.91}
    y_b = \frac{s}{n_b} \sum_t m_{b,t} x_{b,t} \tag{1.92}
    """
    if scale <= 0:
        raise ValueError(f"scale is {scale}; it must be positive")
    secret_count = mask.sum(-1).clamp(min=1)  # B (1.91)
    secret_mean = scale * torch.where(mask, values, 0).sum(-1) / secret_count  # B (1.92)
    return secret_mean


def over_padding(values, mask, scale=1.0):
    return scale * (values * mask).mean(-1)


def not_masked(values, mask, scale=1.0):
    return scale * values.mean(-1)


def as_sum(values, mask, scale=1.0):
    return scale * (values * mask).sum(-1)


def _tiny(seed: int):
    return (torch.tensor([[1.0, 3.0]]).double(), torch.tensor([[True, False]])), {}


def _drawn(seed: int):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(4) < torch.tensor([[4], [2], [0]])
    return (torch.randn(3, 4, generator=generator, dtype=torch.float64), mask), {"scale": 2.0}


MEAN = Exercise(
    copy_of(scaled_mean),
    (Case(_tiny, "one of two tokens counts"), Case(_drawn, "rows of several lengths")),
    (
        wrong_function("mean-over-padding", over_padding, "1.91", "You divide by all T positions."),
        wrong_function("not-masked", not_masked, explanation="The mask is not used."),
        wrong_function("as-sum", as_sum, explanation="You return a sum."),
    ),
    gradient_of=("values",), notebook="01", points=2, minutes=5,
    hints=("Which positions count?", "Two lines: a count, and a quotient."),
)  # fmt: skip


def written_differently(values, mask, scale=1.0):
    rows = [scale * row[keep].sum() / max(int(keep.sum()), 1) for row, keep in zip(values, mask, strict=True)]
    return torch.stack(rows)


def stub(values, mask, scale=1.0):
    raise NotImplementedError("scaled_mean is not written yet")
