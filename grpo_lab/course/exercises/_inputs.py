"""How the inputs of the cases are written down: by hand, or drawn from a seed.

Drawn numbers are float64, so that a difference is a mistake and not rounding.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from grpo_lab.course.exercise import Case

INF, NAN = float("inf"), float("nan")


class Dice:
    """Draws tensors from a seed, the same ones in every process."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def logp(self, *shape: int) -> Tensor:
        """Log-probabilities, between about -4 and 0."""
        return -2 * self.normal(*shape).abs()

    def logp_near(self, logp: Tensor, scale: float = 1.0) -> Tensor:
        """Log-probabilities of a policy that has moved: these, less or more by about `scale`."""
        return -(logp + self.normal(*logp.shape, scale=scale)).abs()

    def integers(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def ragged(self, B: int, T: int) -> Tensor:
        """A mask whose first row is full and whose others end earlier, at 1 to T - 1 tokens."""
        lengths = 1 + self.integers(max(T - 1, 1), B)
        lengths[0] = T
        return torch.arange(T) < lengths[:, None]

    def holes(self, B: int, T: int) -> Tensor:
        """A mask with holes: about half of the tokens, anywhere; the last row is empty."""
        mask = self.integers(2, B, T).bool()
        mask[-1] = False
        return mask

    def fill(self, model: nn.Module) -> nn.Module:
        """The model itself, in float64, with every parameter drawn."""
        with torch.no_grad():
            for parameter in model.double().parameters():
                parameter.copy_(self.normal(*parameter.shape))
        return model


def given(label: str, *args: object, **kwargs: object) -> Case:
    """An input written by hand. Each call gets tensors of its own."""
    return Case(lambda seed: (tuple(map(_fresh, args)), {name: _fresh(kwargs[name]) for name in kwargs}), label)


def drawn(label: str, draw: Callable[[Dice], tuple], **kwargs: object) -> Case:
    """An input drawn anew for each seed; `draw` returns the positional arguments."""
    return Case(lambda seed: (draw(Dice(seed)), dict(kwargs)), label)


def extreme(label: str, *args: object, **kwargs: object) -> Case:
    """As `given`, for an input that only a stable answer survives."""
    return replace(given(label, *args, **kwargs), tests="stability")


def at_scale(label: str, draw: Callable[[Dice], tuple], **kwargs: object) -> Case:
    """As `drawn`, for an input that is large, extreme, or of another precision."""
    return replace(drawn(label, draw, **kwargs), tests="stability")


def padded(values: Tensor, mask: Tensor, filling: float = NAN) -> Tensor:
    """The values, with something else where the mask is False."""
    return values.masked_fill(~mask, filling)


def nan_in_the_padding(logp: Tensor, other: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same arguments, whose log-probabilities are NaN where the mask is False."""
    return padded(logp, mask), padded(other, mask), mask


def f64(rows: list | float) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def log(*probabilities: float) -> Tensor:
    """One row."""
    return f64([list(probabilities)]).log()


def _fresh(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
