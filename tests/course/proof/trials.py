"""Trials of the check of an exercise. Each function returns the gaps: sentences on answers that were judged wrongly.

Three kinds of wrong answers are tried: the known mistakes of the exercise, mutants of its reference, and answers with a
fault of form, such as a wrong shape or a detached gradient. A mutant is made by machine and differs from the reference
in one place, in the function itself or in a private function of its module that it calls. A mutant that agrees with the
reference on all cases is a gap in the exercise, because the check would accept it from a student, unless it is a right
answer: equivalent.txt lists those, with the reasons.

Faults of form that do not depend on the exercise are tested elsewhere: what the guard stops in
checking/test_run_cases.py, and a wrong signature in checking/test_signature.py.
"""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import torch
from torch import Tensor

from grpo_lab.course.checking import judge
from grpo_lab.course.checking.difference import may_be_none
from grpo_lab.course.checking.mistakes import wrong_outcome
from grpo_lab.course.checking.outcome import Outcome, equal_outcomes, tensors_in
from grpo_lab.course.checking.run_cases import case_arguments, expected_outcomes, guarded, outcome_of
from grpo_lab.course.exercise import Exercise, Mistake, function_from_source, source_of
from grpo_lab.formulas import read_equations
from tests.course.small_exercise import copy_of
from tests.mutants.mutant import EQUIVALENT as EQUIVALENT_OF_LINES
from tests.mutants.mutant import read_reasons, without_names
from tests.mutants.operators import variants

SEEDS = (0, 20_011)  # the seed of the inputs that students see, and another one
MOST_LINES, MOST_COLUMNS = 8, 120  # the largest size of a verdict without its folded parts
MAX_CASE_SECONDS = 2.0  # the time limit for one case, since a mutant may run forever
_ONE_DEVICE = "nobody asks an answer to run on a GPU, too"
_NO_GRADIENT = "nothing in this exercise is differentiated"
_WHOLE_NUMBERS = "no exercise asks that rewards may be whole numbers"
_STRICT = "`strict` only raises, and no case asks for an error"
LISTED = read_reasons(Path(__file__).with_name("equivalent.txt"))


def right_answers(exercise: Exercise) -> list[Callable]:
    """Return the reference, and right answers that are written differently."""
    others = importlib.import_module(f"tests.course.right_answers.nb{exercise.notebook}")
    return [exercise.function, *others.RIGHT.get(exercise.name, ())]


def accepts(exercise: Exercise, answer: Callable, seed: int) -> list[str]:
    """Return a sentence if a right answer is rejected."""
    verdict = judge(exercise, outcomes(exercise, answer, seed), seed)
    return [] if verdict.right else [f"right answer {answer.__name__} rejected: {verdict.message.splitlines()[0]}"]


def rejects(exercise: Exercise, mistake: Mistake, seed: int) -> list[str]:
    """Return a sentence if a known mistake is accepted, is not named, or has a verdict that is too long."""
    outcomes = [wrong_outcome(exercise, mistake, index, seed) for index in range(len(exercise.cases))]
    verdict = judge(exercise, outcomes, seed)
    if verdict.right:
        return [f"{mistake.name} accepted"]
    if exercise.planted == (mistake.name,):  # the answer is the stub, in which nothing was repaired
        return [] if verdict.status == "not started" else [f"{mistake.name}: {verdict.status}, as it was given"]
    if mistake.name not in verdict.misconceptions:
        return [f"{mistake.name} rejected, but named {', '.join(verdict.misconceptions) or verdict.fault or 'nothing'}"]
    lines = repr(verdict).splitlines()
    fits = len(lines) <= MOST_LINES and max(map(len, lines)) <= MOST_COLUMNS
    return [] if fits else [f"{mistake.name}: the verdict is too long: {verdict!r}"]


def rejects_form(exercise: Exercise, answer: Callable, fault: str) -> list[str]:
    """Return a sentence if a fault of form is accepted, or the verdict names neither it nor a known mistake."""
    verdict = judge(exercise, outcomes(exercise, answer, SEEDS[0]), SEEDS[0])
    if verdict.right:
        return [f"fault of form '{fault}' accepted"]
    if verdict.fault != fault and not verdict.misconceptions:
        return [f"fault of form '{fault}' rejected, but named {verdict.fault or verdict.status}"]
    return []


def kills_mutants(exercise: Exercise, seed: int) -> list[str]:
    """Return a sentence for each mutant that the check accepts, unless equivalent.txt lists it as a right answer.

    An entry of the list that fits no accepted mutant is a gap, too.
    """
    expected, unused = expected_outcomes(exercise, seed), set(equivalent_entries(exercise))
    num_mutants, gaps = 0, []
    for mutant in mutants(exercise):
        num_mutants += 1
        if survives(exercise, mutant, expected, seed):
            entry = equivalent_entry(exercise, mutant)
            unused.discard(entry)
            gaps += [] if entry else [f"mutant accepted: {mutant.name}"]
    assert num_mutants >= 6, "a reference with so few places to go wrong is no exercise"
    return gaps + [f"mutant listed as equivalent, but not accepted: {entry}" for entry in sorted(unused)]


def outcomes(exercise: Exercise, answer: Callable, seed: int = 0) -> list[Outcome]:
    """Return the outcomes of an answer on all cases, as `run_student` does, but without its slow guard."""
    return [outcome_of(answer, exercise, index, seed) for index in range(len(exercise.cases))]


@dataclass(frozen=True)
class AnswerMutant:
    """A function with one replaced statement.

    Attributes:
        function: The name of the function in which the statement is.
        original: The statement, as `ast.unparse` writes it.
        replacement: The statement in its place; "" if it is left out.
        answer: The mutated reference.
    """

    function: str
    original: str
    replacement: str
    answer: Callable

    @property
    def name(self) -> str:
        return f"{self.function}: {self.original} -> {self.change}"

    @property
    def change(self) -> str:
        return self.replacement or "nothing"


def mutants(exercise: Exercise) -> Iterator[AnswerMutant]:
    """Yield every mutant of the reference of an exercise; no two have the same code."""
    reference = inspect.unwrap(exercise.function)
    trees = _trees(reference)
    for name, tree in trees.items():
        source = ast.unparse(tree)
        for code in dict.fromkeys(map(ast.unparse, variants(tree))):
            if code != source:
                codes = {function: ast.unparse(other_tree) for function, other_tree in trees.items()} | {name: code}
                answer = function_from_source(reference, "\n".join(codes.values()))
                yield AnswerMutant(name, *_difference(source, code), answer)


def survives(exercise: Exercise, mutant: AnswerMutant, expected: Sequence[Outcome], seed: int = 0) -> bool:
    """Return True if a mutant agrees with the reference, whose outcomes are `expected`, on all cases."""
    for index, right in enumerate(expected):
        outcome = guarded(lambda index=index: outcome_of(mutant.answer, exercise, index, seed), MAX_CASE_SECONDS)
        if not equal_outcomes(outcome, right, exercise):
            return False
    return True


def _trees(reference: FunctionType) -> dict[str, ast.FunctionDef]:
    """Return the trees of a function and of the private functions of its module that it calls, by name."""
    module, trees, pending = inspect.getmodule(reference), {}, [reference]
    while pending:
        function = pending.pop()
        tree = tree_of(function)
        if function.__name__ in trees or not isinstance(tree, ast.FunctionDef):
            continue
        trees[function.__name__] = tree
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names = {name for name in names if name.startswith("_") and not name.startswith("_check_")}
        values = (inspect.unwrap(vars(module)[name]) for name in names if callable(vars(module).get(name)))
        pending += [v for v in values if isinstance(v, FunctionType) and v.__module__ == module.__name__]
    return trees


def tree_of(function: FunctionType) -> ast.stmt:
    """Return the syntax tree of a function, without its docstring."""
    tree = ast.parse(source_of(function)).body[0]
    if isinstance(tree, ast.FunctionDef) and ast.get_docstring(tree):
        tree.body = tree.body[1:]
    return tree


def _difference(source: str, code: str) -> tuple[str, str]:
    """Return the first line that differs, in the source and in the changed code; "" in the latter if it is left out."""
    original, replacement = source.splitlines(), code.splitlines()
    line = next(i for i, (old, new) in enumerate(zip(original, [*replacement, ""], strict=False)) if old != new)
    left_out = len(replacement) < len(original) or replacement[line].strip() == "pass"
    return original[line].strip(), "" if left_out else replacement[line].strip()


def equivalent_entries(exercise: Exercise) -> dict[str, str]:
    """Return the reason for each text in equivalent.txt that names a mutant of an exercise."""
    beginning = f"{exercise.name}: "
    return {entry.removeprefix(beginning): why for entry, why in LISTED.items() if entry.startswith(beginning)}


def equivalent_entry(exercise: Exercise, mutant: AnswerMutant) -> str:
    """Return the text of the entry that lists a mutant, or a reason that holds for all of its kind; "" if none does."""
    mutant_names = {without_names(text) for text in (mutant.name, mutant.change)} | {f"{mutant.function}:"}
    explanation = next(
        (text for text in equivalent_entries(exercise) if text in mutant_names or without_names(text) in mutant_names),
        "",
    )
    lines = {without_names(f"({equation.tag}) {mutant.change}") for equation in read_equations(exercise.function)}
    if not explanation:
        reasons = EQUIVALENT_OF_LINES.items()
        explanation = next((reason for text, reason in reasons if without_names(text) in lines), "")
    was_detached = mutant.original.replace(".detach()", "") == mutant.replacement
    detached = was_detached or mutant.replacement.endswith(".detach()")
    if not explanation and not exercise.gradient_of and detached:
        return _NO_GRADIENT
    if not explanation and "torch.result_type(" in mutant.original:
        return _WHOLE_NUMBERS
    if not explanation and re.sub(", strict=False", "", mutant.replacement) == re.sub(
        ", strict=True", "", mutant.original
    ):
        return _STRICT
    on_one_device = re.sub(r", device=[\w.]+|\.cpu\(\)", "", mutant.original)
    if not explanation and on_one_device == re.sub(r"\.cpu\(\)", "", mutant.replacement):
        return _ONE_DEVICE
    return explanation


def faults_of_form(exercise: Exercise) -> dict[str, Callable]:
    """Return an answer with each fault that is possible in an exercise, by the name that `Verdict.fault` has."""
    expected = expected_outcomes(exercise, 0)
    plain = exercise.observations is None and isinstance(expected[0].results["the result"], Tensor)
    changes: dict[str, Callable] = {}
    if plain:
        changes["shape"] = lambda result, arguments: result[None]
        changes["dtype"] = lambda result, arguments: result.to(torch.float16)
    if exercise.observations is None:
        # If None may be an answer, a wrong None is no fault of form, and a list is returned instead.
        changes["type"] = lambda result, arguments: [result, 0] if may_be_none(exercise) else None
    if plain and any(outcome.has_gradient for outcome in expected):
        changes["detached"] = lambda result, arguments: result.detach()
    tensors_of_cases = [
        tensors_in(list(case_arguments(exercise, i, 0).arguments.values())) for i in range(len(exercise.cases))
    ]
    has_floats = any(
        tensor.is_floating_point() and tensor.numel()
        for tensors_of_case in tensors_of_cases
        for tensor in tensors_of_case
    )
    if has_floats and not any(outcome.changed_arguments for outcome in expected):
        changes["inplace"] = _changed_in_place
    return {fault: _answer(exercise, change) for fault, change in changes.items()}


def _answer(exercise: Exercise, change: Callable) -> Callable:
    right = copy_of(exercise.function)

    @functools.wraps(right)
    def answer(*args, **kwargs):
        return change(right(*args, **kwargs), [*args, *kwargs.values()])

    return answer


def _changed_in_place(result, arguments):
    with torch.no_grad():
        for tensor in tensors_in(arguments):
            if tensor.is_floating_point():
                tensor.data = tensor.data + 1.0
                tensor.data.add_(1.0)
    return result
