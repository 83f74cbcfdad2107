"""An exercise: a reference function, cases to try an answer on, mistakes to recognise, and hints.

A mistake is stored as a *function that makes it*, not as a pattern in the text. It is recognised by what it computes,
so it does not matter how a student writes it. Most are written as the lines in which they differ from the reference
(`with_changed_lines`): they are applied to its current source, so a mistake follows every change of the reference, and
an address that fits no line of it is an error. The inputs of a case are written by hand or drawn from a seed. Drawn
inputs are in float64, so that a difference shows a mistake and not rounding. The texts of an exercise are in a YAML
file beside the module that defines it.
"""

import ast
import copy
import inspect
import secrets
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import FunctionType
from typing import TypeVar

import torch
from torch import Tensor, nn

from grpo_lab.base.checks import check_between
from grpo_lab.config.settings import MAX_SEED
from grpo_lab.formulas.lines import with_lines

INF, NAN = float("inf"), float("nan")
_Model = TypeVar("_Model", bound=nn.Module)
TESTED_PROPERTIES = ("values", "stability")  # the values of `Case.tested_property`, in the order of the cases


@dataclass(frozen=True)
class Case:
    """An input on which answers to an exercise are tried. The argument checks of the stub accept it.

    In an exercise, the cases for "values" come before those for "stability", and small, clear inputs come first.

    Attributes:
        build: A function that maps a seed to (args, kwargs); the same seed gives the same input in every process.
            Students see the inputs of seed 0.
        label: A few words about the input, such as "two rewards that are equal".
        tested_property: "values"; or "stability", for an input that is large, extreme, padded with NaN or of another
            precision.
    """

    build: Callable[[int], tuple[tuple, dict]]
    label: str = ""
    tested_property: str = "values"


def _without_reference(*args: object, **kwargs: object) -> None:
    raise TypeError("this mistake is written as changed lines, and no exercise has given it a reference")


@dataclass(frozen=True, eq=False)
class Mistake:
    """A known mistake: its name, a text for the student, and a function that makes it.

    `wrong_lines` and `wrong_function` declare the mistakes of an exercise.

    Attributes:
        name: A name that is unique within the exercise.
        explanation: The text that the student reads when the mistake is recognised. That of a mistake of a lesson is in
            the YAML file of its notebook.
        function: A function that makes the mistake; it has the reference's arguments. The exercise makes it from
            `lines`, if there are any.
        lines: The changed lines of the reference, by address; empty if the function is written out.
        equation: The tag of the equation that the mistake breaks; "" stands for the last tag among `lines`.
    """

    name: str
    explanation: str
    function: Callable
    lines: Mapping[str, str] = field(default_factory=dict)
    equation: str = ""


def wrong_lines(name: str, lines: Mapping[str, str], equation: str = "") -> Mistake:
    """Return a mistake that is written as changed lines of the reference.

    Args:
        name: A name that is unique within the exercise, in lower case with hyphens.
        lines: The changed lines by address, such as {"2.3": "std = 1"} (see `grpo_lab.formulas.lines`).
        equation: The tag of the equation that the mistake breaks, if it is not the last tag among `lines`.
    """
    return Mistake(name, "", _without_reference, lines, equation)


def wrong_function(name: str, function: Callable, equation: str = "", explanation: str = "") -> Mistake:
    """Return a mistake that is written as a function with the reference's arguments.

    Args:
        name: A name that is unique within the exercise, in lower case with hyphens.
        equation: The tag of the equation that the mistake breaks, if it is not the last of the reference.
        explanation: The text for the student, if it is not in the YAML file of a notebook.
    """
    return Mistake(name, explanation, function, equation=equation)


@dataclass(frozen=True, eq=False)
class Exercise:
    """A function for students to write, with everything that checks and explains their answers.

    `pytest tests/course -k prove` checks that the cases distinguish every mistake from the reference.

    Attributes:
        function: The reference, a function of grpo_lab. Its name is the name of the exercise.
        cases: The inputs that an answer is tried on, in the order that `Case` describes.
        mistakes: The known mistakes. If several fit an answer, the first is named.
        gradient_of: The names of the arguments whose gradients are compared too.
        observations: A function (result, args, kwargs) -> dict that extracts what is compared; None compares the
            result.
        tolerance: The relative and absolute tolerance of a comparison.
        planted: The names of the mistakes that the stub contains, in an exercise whose task is to repair wrong code.
        demonstration: Lines of Python that show the planted mistakes at work; they are appended to the task.
        notebook: The number of the notebook, such as "04" or "07c".
        points: The points for a right answer, at least 1.
        minutes: The minutes that an answer takes, at least 1.
        difficulty: 1 (easy), 2 or 3 (hard).
        task: A few sentences on what to write and why it matters.
        hints: At least two hints; the first is gentle, the last nearly gives the line, and none contains it.
        is_variant: Whether the formula was drawn for a class (see `grpo_lab.course.variant`).
        recorded_outcomes: The reference's outcomes on the inputs of seed 0. A student's notebook has them in place of
            the variant's function, which only the teacher has.
    """

    function: Callable
    cases: tuple[Case, ...]
    mistakes: tuple[Mistake, ...]
    gradient_of: tuple[str, ...] = ()
    observations: Callable | None = None
    tolerance: float = 1e-6
    planted: tuple[str, ...] = ()
    demonstration: str = ""
    notebook: str = ""
    points: int = 1
    minutes: int = 1
    difficulty: int = 1
    task: str = ""
    hints: Sequence[str] = ()
    is_variant: bool = False
    recorded_outcomes: tuple = ()

    def __post_init__(self) -> None:
        names = [mistake.name for mistake in self.mistakes]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"mistakes of {self.name} have the name {', '.join(repeated)} more than once")
        mistakes = tuple(
            replace(mistake, function=with_changed_lines(self.function, mistake.lines)) if mistake.lines else mistake
            for mistake in self.mistakes
        )
        object.__setattr__(self, "mistakes", mistakes)

    @property
    def name(self) -> str:
        return self.function.__name__

    def mistake(self, name: str) -> Mistake:
        """Return the known mistake of this name.

        Raises:
            KeyError: If the exercise has no mistake of this name.
        """
        return {mistake.name: mistake for mistake in self.mistakes}[name]


class Draws:
    """A generator of random tensors; the same seed gives the same tensors in every process."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def logp(self, *shape: int) -> Tensor:
        """Draw log-probabilities; nearly all are between -4 and 0."""
        return -2 * self.normal(*shape).abs()

    def updated_logps(self, *shape: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Draw log-probabilities after and before an update of the policy, which moves each by about `scale`."""
        old_logp = self.logp(*shape)
        return -(old_logp + self.normal(*shape, scale=scale)).abs(), old_logp

    def integers(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def ragged(self, B: int, T: int) -> Tensor:
        """Draw a mask of rows of different lengths: T tokens in the first row, 1 to T - 1 in each other row."""
        lengths = 1 + self.integers(max(T - 1, 1), B)
        lengths[0] = T
        return torch.arange(T) < lengths[:, None]

    def holes(self, B: int, T: int) -> Tensor:
        """Draw a mask with holes: about half of the tokens of each row count; the last row is empty."""
        mask = self.integers(2, B, T).bool()
        mask[-1] = False
        return mask

    def fill(self, model: _Model) -> _Model:
        """Convert the model to float64 in place, fill every parameter with random numbers, and return the model."""
        with torch.no_grad():
            for parameter in model.double().parameters():
                parameter.copy_(self.normal(*parameter.shape))
        return model


def handwritten_case(label: str, *args: object, **kwargs: object) -> Case:
    """Return a case whose input is written by hand. Each call of its `build` returns new copies of the arguments."""
    return Case(lambda seed: (tuple(map(_fresh, args)), {name: _fresh(kwargs[name]) for name in kwargs}), label)


def drawn_case(label: str, draw: Callable[[Draws], tuple], **kwargs: object) -> Case:
    """Return a case whose input is drawn from the seed.

    Args:
        draw: A function that returns the positional arguments.
        kwargs: The keyword arguments, which are the same for every seed.
    """
    return Case(lambda seed: (draw(Draws(seed)), dict(kwargs)), label)


def as_stability_case(case: Case) -> Case:
    """Return a case with the same input that tests stability."""
    return replace(case, tested_property="stability")


def stability_case(label: str, *args: object, **kwargs: object) -> Case:
    """Return a case for stability whose extreme input is written by hand."""
    return as_stability_case(handwritten_case(label, *args, **kwargs))


def drawn_stability_case(label: str, draw: Callable[[Draws], tuple], **kwargs: object) -> Case:
    """Return a case for stability whose input is drawn from the seed: large, extreme or of another precision."""
    return as_stability_case(drawn_case(label, draw, **kwargs))


def padded(values: Tensor, mask: Tensor, filling: float = NAN) -> Tensor:
    """Return the values with `filling` wherever the mask is False."""
    return values.masked_fill(~mask, filling)


def nan_padded(logp: Tensor, other_logp: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return two tensors of log-probabilities with NaN wherever the mask is False, and the mask."""
    return padded(logp, mask), padded(other_logp, mask), mask


def f64(rows: list | float) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def logp_row(*probabilities: float) -> Tensor:
    """Return the logarithms of these probabilities as a tensor of one row, in float64."""
    return f64([list(probabilities)]).log()


def _fresh(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def fresh_seed(seed: int | None) -> int:
    """Return a seed for inputs that students have not seen: `seed` itself, or a random one for None.

    Raises:
        ValueError: If the seed is 0, whose inputs students see, or is out of the range of seeds.
    """
    if seed is None:
        return 1 + secrets.randbelow(2**31 - 1)
    check_between("seed", seed, 1, MAX_SEED)
    return seed


def with_changed_lines(reference: Callable, lines: Mapping[str, str]) -> Callable:
    """Return a function that computes what the reference computes with these lines in place of its own.

    The function has the reference's signature. It is compiled when it is called for the first time.

    Args:
        reference: The right answer, a function whose source can be read.
        lines: The changed lines, by their address in the reference (see `grpo_lab.formulas.lines`).

    Raises:
        ValueError: When the function is called, if an address fits no line of the reference, or several.
    """

    @cache
    def compiled() -> Callable:
        return function_from_source(inspect.unwrap(reference), with_lines(source_of(reference), lines))

    def wrong(*args, **kwargs):
        return compiled()(*args, **kwargs)

    wrong.__signature__ = inspect.signature(reference)  # type: ignore[attr-defined]  # `inspect` reads it
    wrong.__name__ = wrong.__qualname__ = f"changed_{reference.__name__}"
    return wrong


def source_of(function: Callable) -> str:
    """Return the current source of a function, without the indentation that it has in its file."""
    return textwrap.dedent(inspect.getsource(function))


def function_from_source(reference: FunctionType, source: str | ast.Module, file: str = "") -> FunctionType:
    """Compile source in the namespace of the reference's module, and return the function that has the reference's name.

    Args:
        reference: The function whose module supplies the global names.
        source: The source, or its syntax tree; its functions lose their decorators.
        file: The file name that a traceback shows for this source; "" names it after the reference.
    """
    tree = ast.parse(source) if isinstance(source, str) else source
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.decorator_list = []
    namespace = dict(reference.__globals__)
    exec(compile(tree, file or f"<{reference.__name__}, changed>", "exec"), namespace)
    return namespace[reference.__name__]
