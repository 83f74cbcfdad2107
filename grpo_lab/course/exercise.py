"""What an exercise is: a reference function, inputs to try it on, mistakes to recognise, and hints.

A mistake is a *function that makes it*, not a pattern in the text. It is recognised by what it computes, so the
student may write it in any way.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

from grpo_lab.checks import check_at_least, check_between, check_choice

_KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
TESTS = ("values", "stability")


@dataclass(frozen=True)
class Case:
    """One input. In an exercise the smallest and most telling come first.

    build: seed -> (args, kwargs), the same for the same seed in every process; seed 0 is the one that students see.
    label: a few words, such as "two rewards that are equal".
    fixed: True if `build` ignores the seed, as a hand-written input does.
    tests: "values"; "stability" for inputs that are large, extreme, padded with NaN or of another precision. In an
    exercise they stand in this order. What the stub's checks refuse is no case.
    """

    build: Callable[[int], tuple[tuple, dict]]
    label: str = ""
    fixed: bool = False
    tests: str = "values"

    def __post_init__(self):
        check_choice("tests", self.tests, TESTS)


@dataclass(frozen=True)
class Misconception:
    """One mistake. `wrong` makes it, with the signature of the reference; `says` is what the student reads.

    equation: the tag that it breaks, such as "4.4".
    pair: the name of another misconception of the exercise that no input tells from this one, if there is one.
    """

    name: str
    wrong: Callable
    says: str
    equation: str = ""
    pair: str = ""

    def __post_init__(self):
        if not _KEBAB.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}; expected words in lower case joined by hyphens")
        if not self.says.strip():
            raise ValueError(f"says of {self.name!r} is empty; expected a sentence on what the mistake does")


@dataclass(frozen=True)
class Exercise:
    """A function to write. See `Case` and `Misconception` for its parts.

    function: the reference, a function of grpo_lab; its name is the name of the exercise.
    notebook: "04" for the fourth.
    points, minutes: at least 1. difficulty: 1, 2 or 3.
    hints: at least 2, from gentle to nearly there, never the line itself.
    gradient_of: arguments whose gradients are compared too.
    observe: (result, args, kwargs) -> dict of what is compared where the result itself is no plain tensor.
    tolerance: relative and absolute.
    task: one or two sentences, what to write and why it matters.

    Raises:
        ValueError: naming exercise, field, what it is and what is allowed.
    """

    function: Callable
    notebook: str
    points: int
    minutes: int
    difficulty: int
    cases: tuple[Case, ...]
    misconceptions: tuple[Misconception, ...]
    hints: tuple[str, ...]
    gradient_of: tuple[str, ...] = ()
    observe: Callable | None = None
    tolerance: float = 1e-6
    task: str = ""

    def __post_init__(self):
        try:
            _check_fields(self)
            _check_misconceptions(self)
        except ValueError as error:
            raise ValueError(f"exercise {self.name}: {error}") from None

    @property
    def name(self) -> str:
        return self.function.__name__


def _check_fields(exercise: Exercise) -> None:
    if not re.fullmatch(r"\d\d", exercise.notebook):
        raise ValueError(f"notebook is {exercise.notebook!r}; expected two digits, such as '04'")
    check_at_least("points", exercise.points, 1)
    check_at_least("minutes", exercise.minutes, 1)
    check_choice("difficulty", exercise.difficulty, (1, 2, 3))
    check_between("tolerance", exercise.tolerance, 0, 1)
    for field, least in (("cases", 1), ("misconceptions", 3), ("hints", 2)):
        if (count := len(getattr(exercise, field))) < least:
            raise ValueError(f"{field} has {count} entries; it must have at least {least}")
    kinds = [TESTS.index(case.tests) for case in exercise.cases]
    if kinds[0] or kinds != sorted(kinds):
        tests = ", ".join(case.tests for case in exercise.cases)
        raise ValueError(f"cases test {tests}; expected {', '.join(TESTS)} in turn")
    for name in exercise.gradient_of:
        check_choice("gradient_of", name, inspect.signature(exercise.function).parameters)


def _check_misconceptions(exercise: Exercise) -> None:
    pairs = {mistake.name: mistake.pair for mistake in exercise.misconceptions}
    if len(pairs) < len(exercise.misconceptions):
        raise ValueError(
            f"misconceptions are {', '.join(m.name for m in exercise.misconceptions)}; a name is there twice"
        )
    for name, pair in pairs.items():
        if pair and (pair == name or pairs.get(pair) != name):
            raise ValueError(f"pair of {name!r} is {pair!r}; expected a misconception whose own pair is {name!r}")
    names = tuple(inspect.signature(exercise.function).parameters)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for mistake in exercise.misconceptions:
        parameters = inspect.signature(mistake.wrong).parameters
        if tuple(parameters) != names and not any(p.kind in variadic for p in parameters.values()):
            raise ValueError(f"wrong of {mistake.name!r} takes {', '.join(parameters)}; expected {', '.join(names)}")
