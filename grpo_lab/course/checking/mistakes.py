"""Name the mistake that explains every case; or mistakes that come together, since many wrong answers make two.

Values are looked at before gradients: where a value is wrong, its gradient says nothing new. And a mistake is named
only if nothing speaks against it: wherever it would show, the answer is wrong, and mostly in the same way. What a
misconception computes is asked for case by case, and no longer than it may still be the one.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache, partial
from itertools import combinations, permutations
from typing import Any

from grpo_lab.base.language import Phrase, fill
from grpo_lab.course.checking.compare import equal, equal_values, no_gradient, same_gradient
from grpo_lab.course.checking.outcome import Outcome, expected_outcomes, inputs, outcome_of
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.stub import planted_lines
from grpo_lab.course.wrong_answers import changed

_MAX_NAMED = 3
_NOT_EXCHANGED = ("", "int", "bool", "str", "typing.Any")  # kinds of arguments that say nothing of what they are
_NAME = re.compile(r"[\w+-]{1,20}")
_Agree = Callable[[Outcome, Outcome], bool]


@lru_cache(maxsize=2000)
def wrong_outcome(exercise: Exercise, mistake: Misconception, index: int, seed: int) -> Outcome:
    """The outcome of a misconception on case `index`; computed once."""
    return outcome_of(mistake.wrong, exercise, index, seed)


@cache
def unrepaired(exercise: Exercise) -> Misconception | None:
    """The stub of an exercise in repairing as a misconception: it is said with the first of its mistakes."""
    if not exercise.planted:
        return None
    first = exercise.misconceptions[exercise.planted[0]]
    unchanged = changed(exercise.function, planted_lines(exercise))
    says = Phrase("It does what it did when you got it. ", first.says)
    return Misconception("", says, unchanged)


@cache
def ignoring(exercise: Exercise) -> list[Misconception]:
    """One misconception a setting: the reference for which it always has its default, or is 1."""
    reference, misconceptions = inspect.unwrap(exercise.function), []
    for name, parameter in inspect.signature(reference).parameters.items():
        if parameter.default is not parameter.empty or parameter.annotation in (float, int):
            value = parameter.annotation(1) if parameter.default is parameter.empty else parameter.default

            def wrong(*args, name=name, value=value, **kwargs):
                bound = inspect.signature(reference).bind(*args, **kwargs)
                return _result(reference, bound, lambda arguments: {name: value})

            text = "`{0}` makes no difference to your result: it is as if it were always {1}."
            says = fill(text, name, repr(value))
            misconceptions.append(Misconception(name.replace("_", "-") + "-ignored", says, wrong))
    return misconceptions


def _result(reference: Callable, bound: inspect.BoundArguments, changes: Callable[[dict], dict]) -> Any:
    """The result with changed arguments; where they are refused, one that no answer has: no error is an answer."""
    try:
        bound.arguments |= changes(bound.arguments)
        return reference(*bound.args, **bound.kwargs)
    except Exception:
        return "refused"


def choices(exercise: Exercise) -> dict[str, list]:
    """The values of each argument that is a choice, a name, a truth value or None, as the cases have them, in order.

    Those of a configuration are among them, as "config.scale_rewards". A text that differs in most cases is no choice.
    """
    arguments = [_settings(exercise, index) for index in range(len(exercise.cases))]
    columns = {name: [values.get(name) for values in arguments] for name in arguments[0]}
    named = {name: values for name, values in columns.items() if all(map(_is_choice, values))}
    return {name: values for name, values in named.items() if 2 <= len(set(values)) <= len(values) / 2}


def _is_choice(value: Any) -> bool:
    return value is None or isinstance(value, bool) or (isinstance(value, str) and _NAME.fullmatch(value) is not None)


@cache
def exchanging(exercise: Exercise) -> list[Misconception]:
    """Misconceptions about an argument: one choice taken for another, a number for its inverse, two exchanged."""
    reference = inspect.unwrap(exercise.function)
    misconceptions: list[Misconception] = []
    for name, values in choices(exercise).items():
        misconceptions += _always_one_choice(reference, name, values)
        misconceptions += _choices_swapped(reference, name, values)
    return [*misconceptions, *_arguments_swapped(reference), *_numbers_inverted(reference)]


def _always_one_choice(reference: Callable, name: str, values: list) -> Iterator[Misconception]:
    """One misconception a choice: a field of a configuration always has it."""
    for value in dict.fromkeys(values) if "." in name else ():
        says = fill("`{0}` makes no difference to your result: it is as if it were always {1}.", name, repr(value))
        ending = "-".join(("always", str(value))).lower()
        yield _value_changed(reference, name, ending, lambda x, value=value: value, says)


def _choices_swapped(reference: Callable, name: str, values: list) -> Iterator[Misconception]:
    """One misconception a pair of choices: the first one is taken for the other."""
    for value, other in permutations(dict.fromkeys(values), 2):
        says = fill("Where `{0}` is {1}, your result is that of {2}.", name, repr(value), repr(other))
        ending = "-as-".join(str(choice).lower().replace("_", "-") for choice in (value, other))
        yield _value_changed(
            reference, name, ending, lambda x, value=value, other=other: other if x == value else x, says
        )


def _arguments_swapped(reference: Callable) -> Iterator[Misconception]:
    """One misconception a pair of arguments of the same kind: they have changed places."""
    parameters = inspect.signature(reference).parameters
    for first, second in combinations(parameters, 2):
        kind = _kind(parameters[first])
        if kind not in _NOT_EXCHANGED and kind == _kind(parameters[second]):
            yield _places_changed(reference, first, second)


def _numbers_inverted(reference: Callable) -> Iterator[Misconception]:
    """Two misconceptions a number: it is taken for its inverse, or has the other sign."""
    for name, parameter in inspect.signature(reference).parameters.items():
        if parameter.annotation is float:
            says = fill("Your result is as if `{0}` were 1 / {0}: do you multiply where you should divide?", name)
            yield _value_changed(reference, name, "inverted", lambda x: 1 / x if x else x, says)
            says = fill("Your result is as if `{0}` were -{0}: is it added where it should be subtracted?", name)
            yield _value_changed(reference, name, "negated", lambda x: -x, says)


def _value_changed(reference: Callable, name: str, ending: str, exchange: Callable, says: Phrase) -> Misconception:
    """The reference with another value of an argument, or of a field of one ("config.scale_rewards")."""
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
    return Misconception(f"{slug}-{ending}", says, wrong)


def _kind(parameter: inspect.Parameter) -> str:
    """The annotation as text, whether None is allowed or not; "" for what has none."""
    annotation = "" if parameter.annotation is parameter.empty else str(parameter.annotation)
    return re.sub(r"^<class '(.*)'>$", r"\1", annotation).replace(" | None", "")


def _places_changed(reference: Callable, first: str, second: str) -> Misconception:
    def wrong(*args, **kwargs):
        bound = inspect.signature(reference).bind(*args, **kwargs)
        bound.apply_defaults()

        def changes(arguments: dict) -> dict:
            values = arguments[first], arguments[second]
            return {} if any(value is None for value in values) else {first: values[1], second: values[0]}

        return _result(reference, bound, changes)

    says = fill("Your result is as if `{0}` and `{1}` had changed places.", first, second)
    return Misconception("-".join((first, second, "exchanged")).replace("_", "-"), says, wrong)


def _settings(exercise: Exercise, index: int) -> dict:
    """The arguments of a case, and the fields of those that are configurations."""
    bound = inputs(exercise, index, 0)[0]
    bound.apply_defaults()
    settings = dict(bound.arguments)
    for name, value in bound.arguments.items():
        if is_dataclass(value) and not isinstance(value, type):
            settings |= {f"{name}.{field.name}": getattr(value, field.name) for field in fields(value)}
    return settings


@cache
def by_name(exercise: Exercise) -> dict[str, Misconception]:
    """Every misconception that a verdict on this exercise may name."""
    return {mistake.name: mistake for mistake in _general(exercise)} | exercise.misconceptions


def _general(exercise: Exercise) -> list[Misconception]:
    """Misconceptions that every exercise may have; none where the answer is the teacher's alone."""
    return [] if exercise.variant else [*ignoring(exercise), *exchanging(exercise)]


def matching(exercise: Exercise, outcomes: Sequence[Outcome], seed: int) -> list[Misconception]:
    """The first misconception that explains every case, if there is one.

    One explains a case if it differs from the reference there and the outcome equals its own, or if it does not
    differ and the outcome equals the reference's. One that differs nowhere explains nothing.
    """
    initial = [unchanged] if (unchanged := unrepaired(exercise)) else []
    known = (*initial, *exercise.misconceptions.values(), *_general(exercise))
    explanation = next((mistake for mistake in known if _explains(exercise, mistake, outcomes, seed)), None)
    return [explanation] if explanation else []


def _explains(exercise: Exercise, mistake: Misconception, outcomes: Sequence[Outcome], seed: int) -> bool:
    by_value = mistake in _general(exercise)  # two factors of a product that changed places show in gradients alone
    shows, expected = False, expected_outcomes(exercise, seed)
    for index, right in enumerate(expected):
        wrong = wrong_outcome(exercise, mistake, index, seed)
        differs = not equal(wrong, right, exercise)
        if not equal(outcomes[index], wrong if differs else right, exercise):
            return False
        shows = shows or (differs and not (by_value and equal_values(wrong, right, exercise)))
    return shows


def likely(exercise: Exercise, outcomes: Sequence[Outcome], seed: int) -> dict[Misconception, tuple[int, ...]]:
    """The misconceptions that together explain at least half of what is wrong, and the cases that each explains.

    For an answer that `matching` finds no single name for. The one that explains most comes first.
    """
    expected = expected_outcomes(exercise, seed)
    values = partial(equal_values, exercise=exercise)
    if any(not values(outcome, right) for outcome, right in zip(outcomes, expected, strict=True)):
        return _cover(exercise, outcomes, seed, values)
    cases_by_mistake: dict[Misconception, tuple[int, ...]] = {}
    for argument in exercise.gradient_of:
        if all(no_gradient(outcome.gradients.get(argument)) for outcome in outcomes):
            if not all(no_gradient(outcome.gradients.get(argument)) for outcome in expected):
                return {}  # which is said as such: many a mistake has no gradient with some inputs
            continue
        gradient = partial(_same_gradient, argument=argument, tolerance=exercise.tolerance)
        cases_by_mistake = _cover(exercise, outcomes, seed, gradient) | cases_by_mistake
    return dict(sorted(cases_by_mistake.items(), key=lambda item: -len(item[1]))[:_MAX_NAMED])


def _same_gradient(a: Outcome, b: Outcome, argument: str, tolerance: float) -> bool:
    return same_gradient(a.gradients.get(argument), b.gradients.get(argument), tolerance)


def _cover(exercise: Exercise, outcomes: Sequence[Outcome], seed: int, agree: _Agree) -> dict[Misconception, tuple]:
    """Choose the mistake that explains most, then the one that explains most of the rest, and so on."""
    expected = expected_outcomes(exercise, seed)
    failing = {index for index, right in enumerate(expected) if not agree(outcomes[index], right)}
    known = (*exercise.misconceptions.values(), *([] if exercise.observe else _general(exercise)))  # runs take long
    explains = {mistake: _explained(exercise, mistake, outcomes, failing, seed, agree) for mistake in known}
    chosen, unexplained = {}, set(failing)
    while unexplained and len(chosen) < _MAX_NAMED:
        best = max(explains, key=lambda mistake: len(unexplained & explains[mistake]))
        if not unexplained & explains[best]:
            break
        chosen[best] = tuple(sorted(unexplained & explains[best]))
        unexplained -= explains.pop(best)
    return chosen if 2 * len(unexplained) <= len(failing) else {}


def _explained(
    exercise: Exercise, mistake: Misconception, outcomes: Sequence[Outcome], failing: set[int], seed: int,
    agree: _Agree,
) -> set[int]:  # fmt: skip
    """The cases on which the answer does what the mistake does; none if the mistake is not the answer's."""
    expected = expected_outcomes(exercise, seed)
    differing = 0
    agreeing = set()
    for index in sorted(range(len(expected)), key=lambda index: index in failing):
        wrong = wrong_outcome(exercise, mistake, index, seed)
        if agree(wrong, expected[index]):
            continue
        if index not in failing:
            return set()
        differing += 1
        if agree(outcomes[index], wrong):
            agreeing.add(index)
    return agreeing if 2 * len(agreeing) >= differing else set()
