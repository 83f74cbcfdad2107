"""An exercise: a reference function, inputs to try it on, mistakes to recognise, and hints.

A mistake is a *function that makes it*, not a pattern in the text. It is recognised by what it computes, so the
student may write it in any way. The inputs are written by hand, or drawn from a seed: then in float64, so that a
difference is a mistake and not rounding. What is said lies beside the exercises, in YAML.
"""

import copy
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from grpo_lab.base.checks import check_between
from grpo_lab.config.settings import LARGEST_SEED
from grpo_lab.course.wrong_answers import changed

INF, NAN = float("inf"), float("nan")
TESTS = ("values", "stability")


@dataclass(frozen=True)
class Case:
    """One input. In an exercise the smallest and most telling come first.

    build: seed -> (args, kwargs), the same for the same seed in every process; seed 0 is the one that students see.
    label: a few words, such as "two rewards that are equal".
    tests: "values"; "stability" for inputs that are large, extreme, padded with NaN or of another precision. In an
    exercise they stand in this order. What the stub's checks refuse is no case.
    """

    build: Callable[[int], tuple[tuple, dict]]
    label: str = ""
    tests: str = "values"


@dataclass(frozen=True, eq=False)
class Misconception:
    """One mistake: its name in the exercise, what the student reads of it, and what makes it.

    wrong: a function that makes it, with the arguments of the reference. lines: what stands instead at an address of
    the reference, where that is all. equation: the tag that it breaks, where it is not that of the last of them.
    """

    name: str
    says: str
    wrong: Callable
    lines: Mapping[str, str] = field(default_factory=dict)
    equation: str = ""


@dataclass(frozen=True, eq=False)
class Exercise:
    """A function to write. See `Case` and `Misconception` for its parts; `pytest tests/course -k prove` checks them.

    function: the reference, a function of grpo_lab; its name is the name of the exercise.
    mistakes: by name, words in lower case joined by hyphens; the first that fits is named. Each is what stands instead
    at an address of the reference, as in {"2.3": "std = 1"} (see `grpo_lab.formulas.lines`), or a function.
    equations: of a mistake, the tag that it breaks, where that is not the last equation whose line is changed.
    gradient_of: arguments whose gradients are compared too.
    observe: (result, args, kwargs) -> dict of what is compared where the result itself is no plain tensor.
    tolerance: relative and absolute.
    planted: names of the mistakes that the stub makes, where the exercise is to repair what runs and is wrong.
    shows: lines of Python that show it.
    notebook: "04" for the fourth, by the name of its module.
    points, minutes: at least 1. difficulty: 1, 2 or 3.
    task: a few sentences, what to write and why it matters.
    hints: at least 2, from gentle to nearly there, never the line itself.
    says: of each mistake, what the student reads.
    variant: whether its formula was drawn for a class (see `grpo_lab.course.variant`).
    recorded: the outcomes on the inputs of seed 0, where the function that has them is the teacher's alone.
    """

    function: Callable
    cases: tuple[Case, ...]
    mistakes: Mapping[str, Mapping[str, str] | Callable]
    equations: Mapping[str, str] = field(default_factory=dict)
    gradient_of: tuple[str, ...] = ()
    observe: Callable | None = None
    tolerance: float = 1e-6
    planted: tuple[str, ...] = ()
    shows: str = ""
    notebook: str = ""
    points: int = 1
    minutes: int = 1
    difficulty: int = 1
    task: str = ""
    hints: Sequence[str] = ()
    says: Mapping[str, str] = field(default_factory=dict)
    variant: bool = False
    recorded: tuple = ()

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def misconceptions(self) -> dict[str, Misconception]:
        return {name: self._misconception(name, change) for name, change in self.mistakes.items()}

    def _misconception(self, name: str, change: Mapping[str, str] | Callable) -> Misconception:
        wrong, lines = (change, {}) if callable(change) else (changed(self.function, change), change)
        return Misconception(name, self.says[name], wrong, lines, self.equations.get(name, ""))


class Draws:
    """A source of tensors drawn from a seed, the same ones in every process."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def logp(self, *shape: int) -> Tensor:
        """Log-probabilities, between about -4 and 0."""
        return -2 * self.normal(*shape).abs()

    def moved(self, *shape: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probabilities of a policy that has moved, and those from which it has, by about `scale` each."""
        old_logp = self.logp(*shape)
        return -(old_logp + self.normal(*shape, scale=scale)).abs(), old_logp

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


def drawn(label: str, draw: Callable[[Draws], tuple], **kwargs: object) -> Case:
    """An input drawn anew for each seed; `draw` returns the positional arguments."""
    return Case(lambda seed: (draw(Draws(seed)), dict(kwargs)), label)


def extreme(label: str, *args: object, **kwargs: object) -> Case:
    """An input written by hand that only a stable answer survives."""
    return replace(given(label, *args, **kwargs), tests="stability")


def at_scale(label: str, draw: Callable[[Draws], tuple], **kwargs: object) -> Case:
    """An input drawn anew for each seed that is large, extreme, or of another precision."""
    return replace(drawn(label, draw, **kwargs), tests="stability")


def padded(values: Tensor, mask: Tensor, filling: float = NAN) -> Tensor:
    """The values, with something else where the mask is False."""
    return values.masked_fill(~mask, filling)


def nan_padded(logp: Tensor, other_logp: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two log-probabilities with NaN where the mask is False, and the mask."""
    return padded(logp, mask), padded(other_logp, mask), mask


def f64(rows: list | float) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def log(*probabilities: float) -> Tensor:
    """Logarithms of probabilities, as one row."""
    return f64([list(probabilities)]).log()


def _fresh(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def fresh_seed(seed: int | None) -> int:
    """The seed of inputs that students have not seen: the one given, else a random one.

    Raises:
        ValueError: for 0, whose inputs they see, and for what is no seed.
    """
    if seed is None:
        return 1 + secrets.randbelow(2**31 - 1)
    check_between("seed", seed, 1, LARGEST_SEED)
    return seed
