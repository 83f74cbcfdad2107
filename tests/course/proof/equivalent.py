"""Mutants that are right answers, since no exercise asks for what they change. equivalent.txt gives the reasons."""

import re
from collections import defaultdict
from pathlib import Path

from grpo_lab.course.exercise import Exercise
from grpo_lab.formulas import read_equations
from tests.course.proof.mutants import AnswerMutant
from tests.mutants.equivalent import EQUIVALENT as EQUIVALENT_OF_LINES
from tests.mutants.equivalent import read_reasons, without_names

_ONE_DEVICE = "nobody asks an answer to run on a GPU, too"
_NO_GRADIENT = "nothing in this exercise is differentiated"
_WHOLE_NUMBERS = "no exercise asks that rewards may be whole numbers"
_STRICT = "`strict` only raises, and no case asks for an error"


# By exercise: the reason for each text that names a mutant.
EQUIVALENT: dict[str, dict[str, str]] = defaultdict(dict)
for listed_entry, why in read_reasons(Path(__file__).with_suffix(".txt")).items():
    name, _, text = listed_entry.partition(": ")
    EQUIVALENT[name][text] = why


def entries_of(exercise: Exercise) -> dict[str, str]:
    return EQUIVALENT.get(exercise.name, {})


def entry(exercise: Exercise, mutant: AnswerMutant) -> str:
    """Return the text of the entry that lists a mutant, or a reason that holds for all of its kind; "" if none does."""
    mutant_names = {without_names(text) for text in (mutant.name, mutant.change)} | {f"{mutant.function}:"}
    explanation = next(
        (text for text in entries_of(exercise) if text in mutant_names or without_names(text) in mutant_names), ""
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
