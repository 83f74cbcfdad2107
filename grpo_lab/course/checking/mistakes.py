"""Find the known mistake that explains all cases of a wrong answer, or several mistakes that explain them together.

Values are compared before gradients, since the gradient of a wrong value tells nothing new. A mistake is named only if
no case contradicts it: on every case where it changes the result, the answer is wrong, and on at least half of them in
the same way. A mistake is computed case by case, until a case rules it out.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
_UNSPECIFIC_TYPES = ("inspect._empty", "int", "bool", "str", "typing.Any")  # arguments of these are never swapped
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
def mistakes_by_name(exercise: Exercise) -> dict[str, Mistake]:
    """Return all mistakes that a verdict on this exercise may name, by name."""
    return {mistake.name: mistake for mistake in (*general_mistakes(exercise), *exercise.mistakes)}


@cache
def general_mistakes(exercise: Exercise) -> list[Mistake]:
    """Return the mistakes that follow from the arguments of the reference; none for a variant.

    In this order: an argument is ignored; a choice is taken for another; two arguments are swapped; a number is
    inverted or negated. They call the reference, which a student's notebook lacks if it is that of a variant.
    """
    if exercise.is_variant:
        return []
    reference = inspect.unwrap(exercise.function)
    parameters = inspect.signature(reference).parameters
    choices = values_of_choices(exercise)
    return [
        *_ignored_arguments(reference, parameters.values()),
        *(mistake for name, values in choices.items() for mistake in _confused_choices(reference, name, values)),
        *(_swapped(reference, *pair) for pair in combinations(parameters, 2) if _are_of_one_type(parameters, *pair)),
        *_altered_numbers(reference, parameters.values()),
    ]


def _ignored_arguments(reference: Callable, parameters: Iterable[inspect.Parameter]) -> Iterator[Mistake]:
    """Yield a mistake for each argument with a default, and for each number: it is always the default, or 1."""
    for parameter in parameters:
        if parameter.default is not parameter.empty:
            yield _always_value(reference, parameter.name, "ignored", parameter.default)
        elif parameter.annotation in (float, int):
            yield _always_value(reference, parameter.name, "ignored", parameter.annotation(1))


def values_of_choices(exercise: Exercise) -> dict[str, list]:
    """Return the values of each argument that is a choice, one for each case.

    The values of a choice are names, booleans or None. A text that differs in most cases is not a choice. The settings
    of a configuration count as arguments, such as "config.scale_rewards".
    """
    arguments = [_arguments_and_settings(exercise, index) for index in range(len(exercise.cases))]
    columns = {name: [values.get(name) for values in arguments] for name in arguments[0]}
    candidates = {name: values for name, values in columns.items() if all(map(_may_be_choice, values))}
    return {name: values for name, values in candidates.items() if 2 <= len(set(values)) <= len(values) / 2}


def _arguments_and_settings(exercise: Exercise, index: int) -> dict:
    """Return the arguments of a case by name, and the fields of configurations as "config.scale_rewards"."""
    bound = case_arguments(exercise, index, 0)
    bound.apply_defaults()
    settings = dict(bound.arguments)
    for name, value in bound.arguments.items():
        if is_dataclass(value) and not isinstance(value, type):
            settings |= {f"{name}.{field.name}": getattr(value, field.name) for field in fields(value)}
    return settings


def _may_be_choice(value: Any) -> bool:
    return value is None or isinstance(value, bool) or (isinstance(value, str) and _NAME.fullmatch(value) is not None)


def _confused_choices(reference: Callable, name: str, values: list) -> Iterator[Mistake]:
    """Yield a mistake for each pair of choices: the first is taken for the other.

    A setting of a configuration may also have one of its values in all cases.
    """
    if "." in name:
        for value in dict.fromkeys(values):
            yield _always_value(reference, name, "always-" + str(value).lower(), value)
    for value, other in permutations(dict.fromkeys(values), 2):
        explanation = fill("Where `{0}` is {1}, your result is that of {2}.", name, repr(value), repr(other))
        ending = f"{value}-as-{other}".lower().replace("_", "-")
        replacement = {value: other}
        yield _value_changed(reference, name, ending, lambda x, new=replacement: new.get(x, x), explanation)


def _are_of_one_type(parameters: Mapping[str, inspect.Parameter], first: str, second: str) -> bool:
    """Return True if two arguments have the same annotation, without " | None", that is specific enough."""
    annotations = [str(parameters[name].annotation).replace(" | None", "") for name in (first, second)]
    first_type, second_type = (re.sub(r"^<class '(.*)'>$", r"\1", annotation) for annotation in annotations)
    return first_type == second_type and first_type not in _UNSPECIFIC_TYPES


def _swapped(reference: Callable, first: str, second: str) -> Mistake:
    """Return the mistake that two arguments are swapped, where neither is None."""

    def changes(arguments: dict) -> dict:
        values = arguments[first], arguments[second]
        return {} if any(value is None for value in values) else {first: values[1], second: values[0]}

    explanation = fill("Your result is as if `{0}` and `{1}` had changed places.", first, second)
    return _with_changed_arguments(reference, f"{first}-{second}", "exchanged", changes, explanation)


def _altered_numbers(reference: Callable, parameters: Iterable[inspect.Parameter]) -> Iterator[Mistake]:
    """Yield two mistakes for each float: it is taken for its inverse, or has the other sign."""
    inverted = "Your result is as if `{0}` were 1 / {0}: do you multiply where you should divide?"
    negated = "Your result is as if `{0}` were -{0}: is it added where it should be subtracted?"
    for name in (parameter.name for parameter in parameters if parameter.annotation is float):
        yield _value_changed(reference, name, "inverted", lambda x: 1 / x if x else x, fill(inverted, name))
        yield _value_changed(reference, name, "negated", lambda x: -x, fill(negated, name))


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

    return _with_changed_arguments(reference, name, ending, changes, explanation)


def _with_changed_arguments(
    reference: Callable, name: str, ending: str, changes: Callable[[dict], dict], explanation: Phrase
) -> Mistake:
    """Return the mistake of calling the reference with other arguments; the arguments are those of `_value_changed`.

    changes: A function that maps all arguments to those that are changed.
    """

    def wrong(*args, **kwargs):
        bound = inspect.signature(reference).bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            bound.arguments |= changes(bound.arguments)
            return reference(*bound.args, **bound.kwargs)
        except Exception:  # the reference refuses these arguments, so no answer has this mistake's result
            return "refused"

    return Mistake(f"{re.sub('[_.]', '-', name)}-{ending}", explanation, wrong)


def matching_mistake(attempt: Attempt) -> Mistake | None:
    """Return the first mistake that explains every case; None if there is none.

    A mistake explains a case if the outcome equals the mistake's own. It has to differ from the reference on at least
    one case.
    """
    exercise = attempt.exercise
    unchanged = unrepaired_stub(exercise)
    candidates = [*([unchanged] if unchanged else []), *exercise.mistakes, *general_mistakes(exercise)]
    return next((mistake for mistake in candidates if _explains_all_cases(mistake, attempt)), None)


def _explains_all_cases(mistake: Mistake, attempt: Attempt) -> bool:
    exercise = attempt.exercise
    # A general mistake has to show in a value: two factors of a product, when swapped, change gradients alone.
    has_to_change_values = mistake in general_mistakes(exercise)
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
    failing_cases = {index for index, (got, right) in enumerate(pairs) if not agree(got, right)}
    candidates = list(exercise.mistakes)
    if exercise.observations is None:  # with observations an exercise often trains: these would take too long
        candidates += general_mistakes(exercise)
    explained = {mistake: _explained_cases(mistake, attempt, failing_cases, agree) for mistake in candidates}
    chosen: dict[Mistake, tuple[int, ...]] = {}
    unexplained = set(failing_cases)
    while unexplained and explained and len(chosen) < _MAX_NAMED_MISTAKES:
        best = max(explained, key=lambda mistake: len(unexplained & explained[mistake]))
        if not unexplained & explained[best]:
            break
        chosen[best] = tuple(sorted(unexplained & explained[best]))
        unexplained -= explained.pop(best)
    return chosen if 2 * len(unexplained) <= len(failing_cases) else {}


def _explained_cases(mistake: Mistake, attempt: Attempt, failing_cases: set[int], agree: _Agree) -> set[int]:
    """Return the failing cases on which the answer has the mistake's outcome.

    The result is empty if the answer is right on a case where the mistake is wrong, or if the outcomes agree on fewer
    than half of the cases where the mistake is wrong.
    """
    num_differing = 0
    agreeing: set[int] = set()
    indices = sorted(range(len(attempt.expected)), key=lambda index: index in failing_cases)
    for num_tried, index in enumerate(indices):
        if 2 * len(agreeing) + len(indices) - num_tried < num_differing:
            return set()  # too few, even if the answer agreed on all of the other cases
        wrong = wrong_outcome(attempt.exercise, mistake, index, attempt.seed)
        if agree(wrong, attempt.expected[index]):
            continue
        if index not in failing_cases:
            return set()
        num_differing += 1
        if agree(attempt.outcomes[index], wrong):
            agreeing.add(index)
    return agreeing if 2 * len(agreeing) >= num_differing else set()
