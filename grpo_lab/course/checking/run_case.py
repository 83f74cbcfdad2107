"""Run a student's function on every case of an exercise, guarded; the result is data for `judge`."""

import inspect
from collections.abc import Callable
from dataclasses import replace

from grpo_lab.base.language import Phrase, fill
from grpo_lab.course.checking.outcome import Outcome, outcome_of
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.guard import guarded

SECONDS = 3.0  # for one case


def run_student(function: Callable, exercise: Exercise, seed: int = 0, seconds: float = SECONDS) -> list[Outcome]:
    """Run a function on each case, in order: one outcome a case. The list ends with a fault that the guard had to stop.

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
    """A sentence on names, order, kinds or defaults of arguments that differ from the reference's; "" if none do."""
    if not callable(function) or isinstance(function, type):
        return fill("{0} is not a function", repr(function))
    try:
        student_signature = inspect.signature(function)
    except (TypeError, ValueError):
        return fill("the arguments of {0} cannot be read", repr(function))
    reference_signature = inspect.signature(exercise.function)
    actual, expected = _compared(student_signature), _compared(reference_signature)
    if _VARIADIC in actual and _VARIADIC not in expected:  # its **settings are the keywords that it does not name
        actual.remove(_VARIADIC)
        expected = [parameter for parameter in expected if parameter in actual or "keyword-only" not in parameter]
    if actual == expected:
        return ""
    takes = fill("it takes {0}, and {1} is needed", _bare(student_signature), _bare(reference_signature))
    difference = _difference(student_signature, reference_signature)
    return Phrase(difference, "; ", takes) if difference else takes


def _difference(actual: inspect.Signature, expected: inspect.Signature) -> str:
    """The first difference between two signatures, by the name of an argument; "" for what has no such name."""
    own, needed = (
        {name: p for name, p in signature.parameters.items() if not p.kind.description.startswith("variadic")}
        for signature in (actual, expected)
    )
    missing, extra = [n for n in needed if n not in own], [n for n in own if n not in needed]
    if len(missing) == len(extra) == 1:
        return fill("`{0}` is called `{1}` in the stub", extra[0], missing[0])
    if missing:
        return fill("the argument `{0}` is missing", missing[0])
    if extra:
        return fill("the stub has no argument `{0}`", extra[0])
    if list(own) != list(needed):
        return "the order of the arguments is another one"
    defaults = [
        n for n in needed if own[n].default != needed[n].default or type(own[n].default) is not type(needed[n].default)
    ]
    if defaults:
        return fill("the default of `{0}` is another one", defaults[0])
    kinds = [n for n in needed if own[n].kind != needed[n].kind]
    return fill("`{0}` is {1} here", kinds[0], own[kinds[0]].kind.description) if kinds else ""


_VARIADIC = "variadic keyword"


def _compared(signature: inspect.Signature) -> list:
    """The parameters as a caller sees them: names do not count of `*args` and `**kwargs`."""
    parameters = signature.parameters.values()
    visible = [
        (p.name, p.kind.description, p.default, isinstance(p.default, bool)) for p in parameters
    ]  # 1 is not True
    return [kind if kind.startswith("variadic") else (name, kind, *default) for name, kind, *default in visible]


def _bare(signature: inspect.Signature) -> str:
    """Write a signature without annotations."""
    empty = signature.empty
    parameters = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=empty))
