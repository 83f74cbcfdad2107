"""Check a function: run it, compare it with the reference, and say what is not right yet, and why.

What is expected is computed before the student's function runs, and no verdict contains source of the reference.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, reduce

from torch import Tensor

from grpo_lab.course.checking.compare import equal, equal_values
from grpo_lab.course.checking.difference import Difference, difference
from grpo_lab.course.checking.mistakes import likely, matching
from grpo_lab.course.checking.outcome import Outcome, expected_outcomes, inputs, outcome_of
from grpo_lab.course.checking.plain_data import Other, plain
from grpo_lab.course.checking.properties import earned, in_both, in_words, properties
from grpo_lab.course.checking.verdict import FAULTS, Part, Verdict, count, lines, most_different, summary
from grpo_lab.course.exercise import TESTS, Exercise, Misconception
from grpo_lab.course.exercises import exercise as find_exercise
from grpo_lab.course.stub import LIBRARY_GONE
from grpo_lab.formulas import Equation, recording
from grpo_lab.formulas.source import read_equations

BEFORE = {
    "values": "",
    "stability": "The simple inputs come out right; this one is harder. ",
}  # said before what the first failing case shows
_KEPT = 64  # exercises and seeds whose expected outcomes are kept


def judge(
    exercise: Exercise,
    outcomes: Sequence[Outcome],
    seed: int = 0,
    expected: Sequence[Outcome] | None = None,
    wrong: dict[str, Sequence[Outcome]] | None = None,
) -> Verdict:
    """The verdict on outcomes of `run_student`, from this process or from another one."""
    if expected is None or wrong is None:
        expected, wrong = expectations(exercise, seed)
    if stopped := next((o for o in outcomes if o.fault or o.patched), None):
        return _with_share(_stopped(exercise, outcomes, stopped), exercise, properties(exercise, outcomes, expected))
    if len(outcomes) != len(expected):
        raise ValueError(f"outcomes has {len(outcomes)} entries; expected {len(expected)}, one a case")
    if any(_calls_the_library(o) for o in outcomes):
        text = FAULTS["library"].format(message=f"`{exercise.name}`")
        return _verdict(exercise, "form", [Part("say", text)], fault="library")
    if all(o.error == "NotImplementedError" for o in outcomes):
        return not_started(exercise)
    failing = tuple(i for i, (o, e) in enumerate(zip(outcomes, expected, strict=True)) if not equal(o, e, exercise))
    if not failing:
        verdict = _right(exercise, outcomes, expected, seed)
    else:
        verdict = _wrong(exercise, outcomes, expected, wrong, failing, seed)
    return _with_share(verdict, exercise, properties(exercise, outcomes, expected))


def _with_share(verdict: Verdict, exercise: Exercise, fulfilled: dict[str, bool]) -> Verdict:
    """What is fulfilled, and what that is worth, where it is not everything and not nothing."""
    points, parts = earned(exercise.points, fulfilled), verdict.parts
    if 0 < points < exercise.points:
        text = f"So far: {in_words(fulfilled)}; worth {points:g} of {count(exercise.points, 'point')}."
        parts = (*parts, Part("say", text))
    return replace(verdict, parts=parts, message=summary(parts), properties=fulfilled)


def _calls_the_library(outcome: Outcome) -> bool:
    return outcome.error == "NotImplementedError" and outcome.message == LIBRARY_GONE


def worth(*verdicts: Verdict) -> int | float:
    """The points for what is fulfilled in all of these verdicts on one exercise."""
    fulfilled = reduce(in_both, (verdict.properties for verdict in verdicts))
    return earned(find_exercise(verdicts[0].exercise).points, fulfilled)


def not_started(exercise: Exercise) -> Verdict:
    """The verdict on a stub that nobody has touched."""
    text = f"Write its body, then check again. hint({exercise.name!r}) helps you to start."
    return _verdict(exercise, "not started", [Part("say", text)])


@cache
def _expectations(exercise: Exercise, seed: int) -> tuple[tuple[Outcome, ...], dict[str, tuple[Outcome, ...]]]:
    from grpo_lab.course.checking import card

    expected = tuple(
        replace(outcome, device="unknown")
        if outcome.error
        else card.trial(exercise.function, exercise, index, seed).told(outcome)
        for index, outcome in enumerate(expected_outcomes(exercise, seed))
    )
    cases = range(len(exercise.cases))
    return expected, {
        m.name: tuple(outcome_of(m.wrong, exercise, i, seed) for i in cases) for m in exercise.misconceptions
    }


def expectations(exercise: Exercise, seed: int = 0) -> tuple[tuple[Outcome, ...], dict[str, tuple[Outcome, ...]]]:
    """What the reference does on every case, and what each misconception does; computed once for each seed."""
    if _expectations.cache_info().currsize > _KEPT:
        _expectations.cache_clear()
    return _expectations(exercise, seed)


def _stopped(exercise: Exercise, outcomes: Sequence[Outcome], stopped: Outcome) -> Verdict:
    fault = stopped.fault or "patched"
    text = FAULTS[fault].format(message=stopped.message, patched=", ".join(stopped.patched))
    parts = [Part("say", text), *_printed(stopped)]
    case = None if fault == "signature" else exercise.cases[len(outcomes) - 1]
    return _verdict(exercise, "form", parts, fault=fault, case=case)


def _right(exercise: Exercise, outcomes: Sequence[Outcome], expected: Sequence[Outcome], seed: int) -> Verdict:
    for index, (outcome, right) in enumerate(zip(outcomes, expected, strict=True)):
        if not right.device and outcome.device and not outcome.device.startswith("unknown"):
            text = FAULTS["device"].format(message=_about_device(outcome.device))
            parts = [Part("say", text), _given(exercise, index, seed)]
            return _verdict(exercise, "form", parts, fault="device", case=exercise.cases[index])
    gradients = [f"`{name}`" for name in exercise.gradient_of]
    checked = f"Checked: {'what it does' if exercise.observe else 'values'} on {count(len(outcomes), 'case')}"
    checked += f", gradients of {' and '.join(gradients)}" if gradients else ""
    checked += ", input left as it was" if not any(e.changed for e in expected) else ""
    checked += ", nothing tied to one device." if not all(e.device for e in expected) else "."
    return _verdict(exercise, "right", [Part("say", f"Well done. {checked}"), *_printed(outcomes[0])])


def _about_device(device: str) -> str:
    if device == "left behind":
        return "the result stays on the CPU"
    return device.removeprefix("mixed: ")


def _wrong(exercise: Exercise, outcomes, expected, wrong: dict, failing: tuple[int, ...], seed: int) -> Verdict:
    failing = _telling_first(exercise, outcomes, expected, failing)
    index, common, named = failing[0], "", _named(exercise, matching(outcomes, expected, wrong, exercise))
    changing = frozenset(name for outcome in expected for name in outcome.changed)
    found = difference(outcomes[index], expected[index], exercise, index, seed, changing)
    if not named and found.fault == "shape":
        index = _telling_shape(outcomes, expected, failing)
        found = difference(outcomes[index], expected[index], exercise, index, seed, changing)
    if not named and (common := _in_common(exercise, outcomes, expected, failing, found, seed)):
        found = replace(found, finding=common)
    elif not named and len(failing) > 1 and found.relations:
        found = replace(
            found, finding=f"{found.finding} So it is with the input below; with others it looks different."
        )
    several = {} if named or found.fault or common else likely(outcomes, expected, wrong, exercise)
    if several:
        index = next(iter(several.values()))[0]  # a case that shows what is said first
        found = difference(outcomes[index], expected[index], exercise, index, seed, changing)
    blamed = named or [m for name in several for m in exercise.misconceptions if m.name == name]
    says = _says_several(blamed, found) if several else _says(named, found, exercise.cases[index].tests)
    equation = _equation(exercise, blamed[0].equation if blamed else "", index, seed)
    parts = [*says, *_failing(exercise, outcomes, found, failing, index, seed), *equation, *_printed(outcomes[index])]
    status = "form" if found.fault and found.fault != "error" and not blamed else "wrong"
    return _verdict(
        exercise, status, parts, fault=found.fault if status == "form" else "", failing=tuple(sorted(failing)),
        misconceptions=tuple(m.name for m in blamed), case=exercise.cases[index],
        got="\n".join(lines(found.what, found.got)), expected="\n".join(lines(found.what, found.expected)),
        equation=equation[0].title if equation else "",
    )  # fmt: skip


def _telling_first(exercise: Exercise, outcomes, expected, failing: tuple[int, ...]) -> tuple[int, ...]:
    """Wrong values before wrong gradients, in each kind of case, and the small cases before the others."""

    def turn(index: int) -> tuple[int, bool]:
        only_gradient = equal_values(outcomes[index], expected[index], exercise)
        return TESTS.index(exercise.cases[index].tests), only_gradient

    return tuple(sorted(failing, key=turn))


def _telling_shape(outcomes, expected, failing: tuple[int, ...]) -> int:
    """The first case of a wrong shape in which no axis has size 1: there a missing axis is no matter of keepdim."""
    for index in failing:
        shapes = [getattr(outcome.value, "shape", None) for outcome in (outcomes[index], expected[index])]
        if None not in shapes and shapes[0] != shapes[1] and not any(1 in shape for shape in shapes):
            return index
    return failing[0]


def _in_common(exercise: Exercise, outcomes, expected, failing: tuple[int, ...], first: Difference, seed: int) -> str:
    """What connects the numbers wherever the same part of the outcome is wrong: more than what one case suggests."""
    others = [difference(outcomes[i], expected[i], exercise, i, seed) for i in failing[1:]]
    alike = [o for o in others if o.what == first.what and Other not in (type(o.got), type(o.expected))]
    holds = [r for r in first.in_common if alike and all(r in other.in_common for other in alike)]
    return holds[0] if holds else ""


def _says(named: list[Misconception], found: Difference, tests: str) -> list[Part]:
    if not named:
        before = BEFORE[tests] if not found.fault or found.fault == "error" else ""
        return [Part("say", before + (found.finding or _no_rule(found)))]
    pairs = [f"Or, which here comes to the same: {m.says}" for m in named[1:]]
    return [Part("say", text) for text in (named[0].says, *pairs)]


def _no_rule(found: Difference) -> str:
    if isinstance(found.got, Tensor | int | float) and not isinstance(found.got, bool):
        return "The numbers differ, and no simple rule connects yours with the right ones."
    return f"{found.what[:1].upper()}{found.what[1:]} is not what is expected."


def _says_several(blamed: list[Misconception], found: Difference) -> list[Part]:
    """Said with care: these explain some of the cases, and what a student did may be something else."""
    if found.what.startswith("the gradient of"):
        head = f"The value is right here, but {found.what} is as if you had made this mistake:"
        return [Part("say", text) for text in (head, *(m.says for m in blamed))]
    if len(blamed) == 1:
        before = "On some of the inputs, yours comes out as with this mistake:"
        after = "It may not be all. Mend this first, and check again."
        return [Part("say", before), Part("say", blamed[0].says), Part("say", after)]
    first, *more = blamed
    head = f"More than one thing is not right yet. First, as it seems: {first.says}"
    return [Part("say", text) for text in (head, *(f"And then: {m.says}" for m in more))]


def _named(exercise: Exercise, names: tuple[str, ...]) -> list[Misconception]:
    """The first that explains everything, and its declared pair if that does too."""
    found = [m for m in exercise.misconceptions if m.name in names]
    return found[:1] + [m for m in found[1:] if m.name == found[0].pair]


def _failing(exercise: Exercise, outcomes, found: Difference, failing, index: int, seed: int) -> list[Part]:
    parts = [_given(exercise, index, seed)]
    if trace := outcomes[index].trace:
        parts.append(Part("values", trace, "Where it happens, in your code:"))
    if found.got is not None or found.expected is not None:
        title = f"The {found.what[4:]}" if found.what.startswith("the ") else found.what
        parts.append(Part("values", "\n".join(lines("yours", found.got)), f"{title}:"))
        parts.append(Part("values", "\n".join(lines("expected", found.expected)), "What is expected:"))
        if where := most_different(found.got, found.expected):
            parts.append(Part("say", where))
    if found.what.startswith("the gradient of"):
        parts.append(Part("say", "A gradient is that of the result, weighted with random numbers that stay the same."))
    right, which = len(exercise.cases) - len(failing), "the first" if index == min(failing) else "one"
    return [
        *parts,
        Part("say", f"{right} of {count(len(exercise.cases), 'case')} right; this is {which} that is not."),
    ]


def _given(exercise: Exercise, index: int, seed: int) -> Part:
    bound, _ = inputs(exercise, index, seed)
    bound.apply_defaults()
    label = exercise.cases[index].label
    text = "\n".join(line for name, value in plain(dict(bound.arguments)).items() for line in lines(name, value))
    return Part("values", text, f"Input{f' ({label})' if label else ''}:")


def _equation(exercise: Exercise, tag: str, index: int, seed: int) -> list[Part]:
    """The equation of that tag; without a tag, the last one that the reference reaches with this input."""
    with suppress(ValueError, OSError):
        equations = {e.tag: e for e in read_equations(exercise.function)}
        tag = tag or _last_reached(exercise, list(equations.values()), index, seed)
        if tag in equations:
            return [Part("equation", equations[tag].latex, tag)]
    return [Part("equation", "", tag)] if tag else []


def _last_reached(exercise: Exercise, equations: list[Equation], index: int, seed: int) -> str:
    bound, _ = inputs(exercise, index, seed)
    with suppress(Exception), recording(exercise.function, equations) as values:
        exercise.function(*bound.args, **bound.kwargs)
        return list(values)[-1]
    return ""


def _printed(outcome: Outcome) -> list[Part]:
    return [Part("values", outcome.printed, "Your function printed:")] if outcome.printed.strip() else []


def _verdict(exercise: Exercise, status: str, parts: list[Part], **more) -> Verdict:
    return Verdict(exercise.name, status, summary(parts), tuple(parts), **more)
