"""Compare the signature of a student's function with that of the reference."""

import inspect
from collections.abc import Callable

from grpo_lab.base.language import Phrase, fill
from grpo_lab.course.exercise import Exercise

_VARIADIC_KEYWORD = "variadic keyword"  # the description of the kind of `**kwargs`


def signature_fault(function: Callable, exercise: Exercise) -> str:
    """Return a sentence on how a signature differs from the reference's; "" if a caller sees no difference."""
    if not callable(function) or isinstance(function, type):
        return fill("{0} is not a function", repr(function))
    try:
        student_signature = inspect.signature(function)
    except (TypeError, ValueError):
        return fill("the arguments of {0} cannot be read", repr(function))
    reference_signature = inspect.signature(exercise.function)
    actual, expected = _parameters_for_caller(student_signature), _parameters_for_caller(reference_signature)
    if _VARIADIC_KEYWORD in actual and _VARIADIC_KEYWORD not in expected:
        # The function's **settings take the keyword arguments that it does not name.
        actual.remove(_VARIADIC_KEYWORD)
        expected = [parameter for parameter in expected if parameter in actual or "keyword-only" not in parameter]
    if actual == expected:
        return ""
    takes = fill(
        "it takes {0}, and {1} is needed",
        _without_annotations(student_signature),
        _without_annotations(reference_signature),
    )
    difference = _named_difference(student_signature, reference_signature)
    return Phrase(difference, "; ", takes) if difference else takes


def _named_difference(actual: inspect.Signature, expected: inspect.Signature) -> str:
    """Return a sentence on the first argument that differs; "" if the difference is in *args or **kwargs."""
    defined, needed = _named_parameters(actual), _named_parameters(expected)
    missing = [name for name in needed if name not in defined]
    extra = [name for name in defined if name not in needed]
    if len(missing) == len(extra) == 1:
        return fill("`{0}` is called `{1}` in the stub", extra[0], missing[0])
    if missing:
        return fill("the argument `{0}` is missing", missing[0])
    if extra:
        return fill("the stub has no argument `{0}`", extra[0])
    if list(defined) != list(needed):
        return "the arguments are in another order"
    for name, parameter in needed.items():
        default = defined[name].default
        if default != parameter.default or type(default) is not type(parameter.default):
            return fill("`{0}` has another default", name)
    for name, parameter in needed.items():
        if defined[name].kind != parameter.kind:
            return fill("`{0}` is {1} here", name, defined[name].kind.description)
    return ""


def _named_parameters(signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    """Return the parameters by name, without `*args` and `**kwargs`."""
    parameters = signature.parameters.items()
    return {name: parameter for name, parameter in parameters if not _is_variadic(parameter)}


def _is_variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind.description.startswith("variadic")


def _parameters_for_caller(signature: inspect.Signature) -> list:
    """Return the parameters as a caller sees them: of `*args` and `**kwargs` the kind, of the others all but the type.

    A default of True differs from 1, and False from 0.
    """
    return [
        parameter.kind.description
        if _is_variadic(parameter)
        else (parameter.name, parameter.kind.description, parameter.default, isinstance(parameter.default, bool))
        for parameter in signature.parameters.values()
    ]


def _without_annotations(signature: inspect.Signature) -> str:
    """Return a signature as text, without annotations."""
    empty = signature.empty
    parameters = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=empty))
