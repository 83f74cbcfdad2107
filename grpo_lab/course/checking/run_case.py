"""Run a student's function on every case of an exercise, guarded; the result is data for `judge`."""

import inspect
from collections.abc import Callable
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
    try:
        mine = inspect.signature(function)
    except (TypeError, ValueError):
        return f"the arguments of {function!r} cannot be read"
    signature = inspect.signature(exercise.function)
    given, needed = _compared(mine), _compared(signature)
    if _REST in given and _REST not in needed:  # its **settings are the keywords that it does not name
        given.remove(_REST)
        needed = [parameter for parameter in needed if parameter in given or "keyword-only" not in parameter]
    return "" if given == needed else f"it takes {_bare(mine)}, and {_bare(signature)} is needed"


_REST = "variadic keyword"


def _compared(signature: inspect.Signature) -> list:
    """Of each argument what a caller sees: of `*args` and `**kwargs` not the name."""
    parameters = signature.parameters.values()
    seen = [(p.name, p.kind.description, p.default, isinstance(p.default, bool)) for p in parameters]  # 1 is not True
    return [kind if kind.startswith("variadic") else (name, kind, *default) for name, kind, *default in seen]


def _bare(signature: inspect.Signature) -> str:
    """Without annotations."""
    empty = signature.empty
    parameters = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=empty))
