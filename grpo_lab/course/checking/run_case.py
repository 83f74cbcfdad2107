"""Run a student's function on every case of an exercise, guarded; the result is data for `judge`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace

from grpo_lab.course.checking.outcome import Outcome, outcome_of
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.guard import guarded

SECONDS = 3.0  # for one case


def run_student(function: Callable, exercise: Exercise, seed: int = 0, seconds: float = SECONDS) -> list[Outcome]:
    """One outcome a case, in order. After a fault that the guard had to stop, the list ends with it.

    Args:
        function: any callable; a wrong signature is a fault, too.
        exercise: what to try it on.
        seed: of the inputs.
        seconds: allowed for each case.
    """
    if message := signature_fault(function, exercise):
        return [Outcome(fault="signature", message=message)]
    outcomes: list[Outcome] = []
    for index in range(len(exercise.cases)):
        ran = guarded(lambda index=index: outcome_of(function, exercise, index, seed), seconds)
        outcomes.append(replace(ran.result or Outcome(fault=ran.fault or "exit"), printed=ran.printed))
        if outcomes[-1].fault:
            break
    return outcomes


def signature_fault(function: Callable, exercise: Exercise) -> str:
    """What is wrong with names, order, kinds or defaults of the arguments; "" if nothing is."""
    if not callable(function) or isinstance(function, type):
        return f"{function!r} is not a function"
    needed = inspect.signature(exercise.function).parameters
    try:
        given = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return f"the arguments of {function!r} cannot be read"
    if _takes_the_rest(given) and not _takes_the_rest(needed):  # its **settings are the keywords that it does not name
        given = {name: parameter for name, parameter in given.items() if parameter.kind != parameter.VAR_KEYWORD}
        needed = {name: p for name, p in needed.items() if name in given or p.kind != p.KEYWORD_ONLY}
    if _names(given) != _names(needed):
        return f"it takes ({', '.join(given)}), and ({', '.join(needed)}) are needed"
    for name, parameter in needed.items():
        if parameter.kind in VARIADIC:
            continue
        if given[name].kind != parameter.kind:
            return f"{name} is {given[name].kind.description}, and {parameter.kind.description} is needed"
        if not _same_default(given[name].default, parameter.default):
            return f"{name} {_says_default(given[name].default)}; the exercise {_says_default(parameter.default)}"
    return ""


VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _takes_the_rest(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())


def _names(parameters: Mapping[str, inspect.Parameter]) -> list:
    """Of `*args` and `**kwargs` no caller sees the names."""
    return [parameter.kind if parameter.kind in VARIADIC else name for name, parameter in parameters.items()]


def _same_default(a, b) -> bool:
    """1 and 1.0 are the same default, 1 and True are not."""
    return a is b or (bool(a == b) and isinstance(a, bool) == isinstance(b, bool))


def _says_default(default) -> str:
    return "has no default" if default is inspect.Parameter.empty else f"has the default {default!r}"
