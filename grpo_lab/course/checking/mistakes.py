"""Find the known mistake that explains all cases of a wrong answer, or several mistakes that explain them together.

Values are compared before gradients, since the gradient of a wrong value tells nothing new. A mistake is named only if
no case contradicts it: on every case where it changes the result, the answer is wrong, and on at least half of them in
the same way. A mistake is computed case by case, until a case rules it out.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache, partial
from itertools import combinations, permutations
from typing import Any

from grpo_lab.base.language import Phrase, fill
from grpo_lab.course.checking.outcome import Outcome, equal_outcomes, equal_values, no_gradient, same_gradient
from grpo_lab.course.checking.run_cases import Attempt, case_arguments, outcome_of
from grpo_lab.course.exercise import Exercise, Mistake, with_changed_lines
from grpo_lab.course.stub import planted_lines

_MAX_NAMED_MISTAKES = 3
_UNSPECIFIC_TYPES = ("", "int", "bool", "str", "typing.Any")  # arguments of these types are never swapped
_NAME = re.compile(r"[\w+-]{1,20}")
_Agree = Callable[[Outcome, Outcome], bool]


@lru_cache(maxsize=2000)
def wrong_outcome(exercise: Exercise, mistake: Mistake, index: int, seed: int) -> Outcome:
    """Return the outcome of a mistake on case `index`; it is computed once."""
    return outcome_of(mistake.function, exercise, index, seed)


@cache
def unrepaired_stub(exercise: Exercise) -> Mistake | None:
    """Return the stub of a repair exercise as a mistake, with the text of the first planted one.

    None if the exercise has no planted mistakes.
    """
    if not exercise.planted:
        return None
    first = exercise.mistake(exercise.planted[0])
    unchanged = with_changed_lines(exercise.function, planted_lines(exercise))
    explanation = Phrase("It does what it did when you got it. ", first.explanation)
    return Mistake("", explanation, unchanged)


@cache
def ignored_settings(exercise: Exercise) -> list[Mistake]:
    """Return a mistake for each setting that an answer may ignore.

    The mistake is the reference with the setting always at its default, or at 1 if it has none.
    """
    reference, mistakes = inspect.unwrap(exercise.function), []
    for name, parameter in inspect.signature(reference).parameters.items():
        if parameter.default is not parameter.empty or parameter.annotation in (float, int):
            value = parameter.annotation(1) if parameter.default is parameter.empty else parameter.default
            mistakes.append(_always_value(reference, name, "ignored", value))
    return mistakes


def _result(reference: Callable, bound: inspect.BoundArguments, changes: Callable[[dict], dict]) -> Any:
    """Return the reference's result with changed arguments.

    If the reference refuses them, the result is a text that no answer returns, so that no answer matches.
    """
    try:
        bound.arguments |= changes(bound.arguments)
        return reference(*bound.args, **bound.kwargs)
    except Exception:
        return "refused"


def values_of_choices(exercise: Exercise) -> dict[str, list]:
    """Return the values of each argument that is a choice, one for each case.

    The values of a choice are names, booleans or None. A text that differs in most cases is not a choice. The settings
    of a configuration count as arguments, such as "config.scale_rewards".
    """
    arguments = [_arguments_and_settings(exercise, index) for index in range(len(exercise.cases))]
    columns = {name: [values.get(name) for values in arguments] for name in arguments[0]}
    candidates = {name: values for name, values in columns.items() if all(map(_may_be_choice, values))}
    return {name: values for name, values in candidates.items() if 2 <= len(set(values)) <= len(values) / 2}


def _may_be_choice(value: Any) -> bool:
    return value is None or isinstance(value, bool) or (isinstance(value, str) and _NAME.fullmatch(value) is not None)


@cache
def exchanged_arguments(exercise: Exercise) -> list[Mistake]:
    """Return mistakes about arguments: a choice or a number is taken for another one, or two arguments are swapped."""
    reference = inspect.unwrap(exercise.function)
    mistakes: list[Mistake] = []
    for name, values in values_of_choices(exercise).items():
        mistakes += _always_one_choice(reference, name, values)
        mistakes += _choices_swapped(reference, name, values)
    return [*mistakes, *_arguments_swapped(reference), *_numbers_inverted(reference)]


def _always_one_choice(reference: Callable, name: str, values: list) -> Iterator[Mistake]:
    """Yield a mistake for each value of a configuration's setting: the setting always has this value."""
    if "." not in name:
        return
    for value in dict.fromkeys(values):
        yield _always_value(reference, name, "-".join(("always", str(value))).lower(), value)


def _choices_swapped(reference: Callable, name: str, values: list) -> Iterator[Mistake]:
    """Yield a mistake for each pair of choices: the first one is taken for the other."""
    for value, other in permutations(dict.fromkeys(values), 2):
        explanation = fill("Where `{0}` is {1}, your result is that of {2}.", name, repr(value), repr(other))
        ending = "-as-".join(str(choice).lower().replace("_", "-") for choice in (value, other))
        yield _value_changed(
            reference, name, ending, lambda x, value=value, other=other: other if x == value else x, explanation
        )


def _arguments_swapped(reference: Callable) -> Iterator[Mistake]:
    """Yield a mistake for each pair of arguments of the same type: they are swapped."""
    parameters = inspect.signature(reference).parameters
    for first, second in combinations(parameters, 2):
        type_name = _type_name(parameters[first])
        if type_name not in _UNSPECIFIC_TYPES and type_name == _type_name(parameters[second]):
            yield _swapped_pair(reference, first, second)


def _numbers_inverted(reference: Callable) -> Iterator[Mistake]:
    """Yield two mistakes for each float: it is taken for its inverse, or has the other sign."""
    for name, parameter in inspect.signature(reference).parameters.items():
        if parameter.annotation is float:
            explanation = fill(
                "Your result is as if `{0}` were 1 / {0}: do you multiply where you should divide?", name
            )
            yield _value_changed(reference, name, "inverted", lambda x: 1 / x if x else x, explanation)
            explanation = fill("Your result is as if `{0}` were -{0}: is it added where it should be subtracted?", name)
            yield _value_changed(reference, name, "negated", lambda x: -x, explanation)


def _always_value(reference: Callable, name: str, ending: str, value: Any) -> Mistake:
    """Return the mistake that an argument, or a setting of a configuration, always has the same value."""
    explanation = fill("`{0}` makes no difference to your result: it is as if it were always {1}.", name, repr(value))
    return _value_changed(reference, name, ending, lambda _: value, explanation)


def _value_changed(reference: Callable, name: str, ending: str, exchange: Callable, explanation: Phrase) -> Mistake:
    """Return the mistake of using another value for an argument, or for a setting of a configuration.

    Args:
        name: The name of the argument, or of a setting, such as "config.scale_rewards".
        ending: The end of the mistake's name.
        exchange: A function that maps the right value to the one that is used.
        explanation: The text that the student reads.
    """
    argument, _, field = name.partition(".")

    def changes(arguments: dict) -> dict:
        value = arguments[argument]
        new = exchange(getattr(value, field) if field else value)
        return {argument: replace(value, **{field: new}) if field else new}

    def wrong(*args, **kwargs):
        bound = inspect.signature(reference).bind(*args, **kwargs)
        bound.apply_defaults()
        return _result(reference, bound, changes)

    slug = re.sub("[_.]", "-", name)
    return Mistake(f"{slug}-{ending}", explanation, wrong)


def _type_name(parameter: inspect.Parameter) -> str:
    """Return the annotation of a parameter as text, without " | None"; "" if it has none."""
    annotation = "" if parameter.annotation is parameter.empty else str(parameter.annotation)
    return re.sub(r"^<class '(.*)'>$", r"\1", annotation).replace(" | None", "")


def _swapped_pair(reference: Callable, first: str, second: str) -> Mistake:
    def wrong(*args, **kwargs):
        bound = inspect.signature(reference).bind(*args, **kwargs)
        bound.apply_defaults()

        def changes(arguments: dict) -> dict:
            values = arguments[first], arguments[second]
            return {} if any(value is None for value in values) else {first: values[1], second: values[0]}

        return _result(reference, bound, changes)

    explanation = fill("Your result is as if `{0}` and `{1}` had changed places.", first, second)
    return Mistake("-".join((first, second, "exchanged")).replace("_", "-"), explanation, wrong)


def _arguments_and_settings(exercise: Exercise, index: int) -> dict:
    """Return the arguments of a case by name, and the fields of configurations as "config.scale_rewards"."""
    bound = case_arguments(exercise, index, 0)
    bound.apply_defaults()
    settings = dict(bound.arguments)
    for name, value in bound.arguments.items():
        if is_dataclass(value) and not isinstance(value, type):
            settings |= {f"{name}.{field.name}": getattr(value, field.name) for field in fields(value)}
    return settings


@cache
def mistakes_by_name(exercise: Exercise) -> dict[str, Mistake]:
    """Return all mistakes that a verdict on this exercise may name, by name."""
    return {mistake.name: mistake for mistake in (*_general_mistakes(exercise), *exercise.mistakes)}


def _general_mistakes(exercise: Exercise) -> list[Mistake]:
    """Return the mistakes that are built from the signature; none for a variant.

    They call the reference, and the reference of a variant is not in the student's notebook.
    """
    return [] if exercise.is_variant else [*ignored_settings(exercise), *exchanged_arguments(exercise)]


def matching_mistake(attempt: Attempt) -> Mistake | None:
    """Return the first mistake that explains every case; None if there is none.

    A mistake explains a case if the outcome equals the mistake's own. It has to differ from the reference on at least
    one case.
    """
    exercise = attempt.exercise
    unchanged = unrepaired_stub(exercise)
    candidates = [*exercise.mistakes, *_general_mistakes(exercise)]
    if unchanged is not None:
        candidates = [unchanged, *candidates]
    return next((mistake for mistake in candidates if _explains_all_cases(mistake, attempt)), None)


def _explains_all_cases(mistake: Mistake, attempt: Attempt) -> bool:
    exercise = attempt.exercise
    # A general mistake has to show in a value: two factors of a product, when swapped, change gradients alone.
    has_to_change_values = mistake in _general_mistakes(exercise)
    differs_somewhere = False
    for index, (got, right) in enumerate(zip(attempt.outcomes, attempt.expected, strict=True)):
        wrong = wrong_outcome(exercise, mistake, index, attempt.seed)
        differs = not equal_outcomes(wrong, right, exercise)
        if not equal_outcomes(got, wrong if differs else right, exercise):
            return False
        if differs and not (has_to_change_values and equal_values(wrong, right, exercise)):
            differs_somewhere = True
    return differs_somewhere


def likely_mistakes(attempt: Attempt) -> dict[Mistake, tuple[int, ...]]:
    """Return mistakes that together explain at least half of the failing cases, each with the cases that it explains.

    This is for an attempt for which `matching_mistake` finds no single mistake. The mistake that explains most comes
    first.
    """
    exercise, outcomes, expected = attempt.exercise, attempt.outcomes, attempt.expected
    agree_in_values = partial(equal_values, exercise=exercise)
    if any(not agree_in_values(outcome, right) for outcome, right in zip(outcomes, expected, strict=True)):
        return _mistakes_that_cover(attempt, agree_in_values)
    cases_by_mistake: dict[Mistake, tuple[int, ...]] = {}
    for argument in exercise.gradient_of:
        if all(no_gradient(outcome.gradients.get(argument)) for outcome in outcomes):
            if not all(no_gradient(outcome.gradients.get(argument)) for outcome in expected):
                # Several mistakes have no gradient on some inputs, so none is named: the verdict says that the
                # gradient is missing.
                return {}
            continue
        agree_in_gradient = partial(_same_gradient, argument=argument, tolerance=exercise.tolerance)
        cases_by_mistake = _mistakes_that_cover(attempt, agree_in_gradient) | cases_by_mistake
    return dict(sorted(cases_by_mistake.items(), key=lambda item: -len(item[1]))[:_MAX_NAMED_MISTAKES])


def _same_gradient(a: Outcome, b: Outcome, argument: str, tolerance: float) -> bool:
    return same_gradient(a.gradients.get(argument), b.gradients.get(argument), tolerance)


def _mistakes_that_cover(attempt: Attempt, agree: _Agree) -> dict[Mistake, tuple[int, ...]]:
    """Choose mistakes one by one, always the one that explains most of the cases that are still unexplained.

    The result is empty if they leave more than half of the failing cases unexplained.

    agree: A function that compares two outcomes in what is to be explained: their values, or one gradient.
    """
    exercise = attempt.exercise
    pairs = zip(attempt.outcomes, attempt.expected, strict=True)
    failing = {index for index, (got, right) in enumerate(pairs) if not agree(got, right)}
    candidates = list(exercise.mistakes)
    if exercise.observations is None:  # with observations an exercise often trains: these would take too long
        candidates += _general_mistakes(exercise)
    explained = {mistake: _explained_cases(mistake, attempt, failing, agree) for mistake in candidates}
    chosen: dict[Mistake, tuple[int, ...]] = {}
    unexplained = set(failing)
    while unexplained and explained and len(chosen) < _MAX_NAMED_MISTAKES:
        best = max(explained, key=lambda mistake: len(unexplained & explained[mistake]))
        if not unexplained & explained[best]:
            break
        chosen[best] = tuple(sorted(unexplained & explained[best]))
        unexplained -= explained.pop(best)
    return chosen if 2 * len(unexplained) <= len(failing) else {}


def _explained_cases(mistake: Mistake, attempt: Attempt, failing: set[int], agree: _Agree) -> set[int]:
    """Return the failing cases on which the answer has the mistake's outcome.

    The result is empty if the answer is right on a case where the mistake is wrong, or if the outcomes agree on fewer
    than half of the cases where the mistake is wrong.
    """
    num_differing = 0
    agreeing = set()
    for index in sorted(range(len(attempt.expected)), key=lambda index: index in failing):
        wrong = wrong_outcome(attempt.exercise, mistake, index, attempt.seed)
        if agree(wrong, attempt.expected[index]):
            continue
        if index not in failing:
            return set()
        num_differing += 1
        if agree(attempt.outcomes[index], wrong):
            agreeing.add(index)
    return agreeing if 2 * len(agreeing) >= num_differing else set()
