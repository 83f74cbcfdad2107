r"""Variants: exercises whose formula is drawn for each class, and a key for the teacher.

    grpo-lab course release DIR --assignment 05 --variant SECRET    write the notebook with the formulas of the class
    grpo-lab course grade DIR --variant SECRET                      mark submissions by these formulas
    grpo-lab course key --variant SECRET                            print the formulas and the right functions

A variant replaces one equation of the reference, and the line that computes it. It keeps the reference's name,
arguments and inputs, so notebooks, checks and grading work as without variants. The secret of the class decides which
formulas are drawn. The formulas are in a file of the repository or of the teacher, and not in the package. Students'
notebooks do not have the right function either: they hold its *results* on the inputs of seed 0, with which `check`
compares.
"""

import base64
import inspect
import json
import linecache
import re
import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import yaml

import grpo_lab
from grpo_lab.base.checks import InputError, InputFileError, check_choice
from grpo_lab.base.language import Phrase, _, fill, translate
from grpo_lab.course import exercises
from grpo_lab.course.checking.outcome import from_bytes, to_bytes
from grpo_lab.course.checking.run_cases import expected_outcomes
from grpo_lab.course.exercise import Exercise, function_from_source, source_of, wrong_function
from grpo_lab.course.stub import solution_body, stub_head
from grpo_lab.formulas.lines import with_lines

# The file of formulas for teachers, which only a checkout of the repository has.
VARIANTS = Path(grpo_lab.__file__).parents[1] / "docs" / "teaching" / "variants.yaml"
LESSON_MISTAKE = "formula-of-the-lesson"
LESSON_SAYS = (
    "This is the formula of the lesson. Your class has another one: it stands above the cell, and in the docstring."
)


@dataclass(frozen=True)
class ClassFormula:
    """Another formula for one equation of an exercise: an entry of the file of formulas, whose keys are these fields.

    Attributes:
        equation: The tag of the equation.
        formula: The formula in LaTeX, without its tag.
        line: The line of code that computes it.
        says: A sentence on the formula for the student.
        draw: The words in the texts that stand for a number, with the numbers to draw from.
        title: The first sentence of the docstring; "" keeps that of the lesson.
        hints: The hints; without any, the exercise keeps those of the lesson.
    """

    equation: str
    formula: str
    line: str
    says: str
    draw: Mapping[str, Sequence[float]] = field(default_factory=dict)
    title: str = ""
    hints: Sequence[str] = ()

    @property
    def sentence(self) -> Phrase:
        """The sentence that says that the formula is not that of the lesson."""
        return fill("**The formula of your class:** Eq. ({0}) is not that of the lesson. {1}", self.equation, self.says)

    def with_number(self, word: str, number: float) -> "ClassFormula":
        """Return the formula with a word replaced by a number wherever it occurs in the texts."""

        def filled(text: str) -> str:
            return re.sub(rf"\b{word}\b", f"{number:g}", text)

        return replace(
            self,
            formula=filled(self.formula),
            line=filled(self.line),
            says=filled(self.says),
            title=filled(self.title),
            hints=[filled(hint) for hint in self.hints],
        )


@dataclass(frozen=True)
class ClassKey:
    """The key of a class, from which its variants follow.

    Attributes:
        secret: A text that only the teacher knows; it decides which formulas are drawn.
        file: The YAML file of the formulas.
    """

    secret: str
    file: Path = VARIANTS

    @cached_property
    def _formulas(self) -> dict[str, list[ClassFormula]]:
        return read_variants(self.file)

    def exercises(self, notebook: str) -> dict[str, Exercise]:
        """Return the variants of this class in a notebook, such as "05", by the name of the function."""
        return {name: variant_of(name, formula) for name, formula in self._drawn_formulas(notebook).items()}

    def translations(self, notebook: str, target: str) -> dict[str, str]:
        """Return the translations of the sentences about the class's formulas in a notebook, by the English sentence.

        Args:
            notebook: The number of the notebook, such as "05".
            target: The language to translate to, such as "zh_CN".
        """
        sentences = [formula.sentence for formula in self._drawn_formulas(notebook).values()]
        return {str(sentence): translate(sentence, target) for sentence in sentences}

    def fingerprint(self, notebook: str) -> str:
        """Return eight characters that identify the formulas of a notebook; "" if it has no variants.

        Classes with different formulas have different fingerprints. The secret cannot be derived from a fingerprint.
        """
        latex_by_name = {name: formula.formula for name, formula in self._drawn_formulas(notebook).items()}
        return sha256(json.dumps(latex_by_name).encode()).hexdigest()[:8] if latex_by_name else ""

    def _drawn_formulas(self, notebook: str) -> dict[str, ClassFormula]:
        """Return the formulas of this class in a notebook, by the name of the function."""
        names = exercises.NAMES.get(notebook, ())
        return {name: self._drawn_formula(name) for name in names if name in self._formulas}

    def _drawn_formula(self, name: str) -> ClassFormula:
        formulas = self._formulas[name]
        formula = formulas[self._drawn_number(name, len(formulas))]
        for word, numbers in formula.draw.items():
            formula = formula.with_number(word, numbers[self._drawn_number(f"{name}/{word}", len(numbers))])
        return formula

    def _drawn_number(self, purpose: str, below: int) -> int:
        """Derive a number from 0 to `below` - 1 from the secret. Each purpose, a text, has its own number."""
        return int.from_bytes(sha256(f"{self.secret}/{purpose}".encode()).digest()) % below


def read_variants(file: Path = VARIANTS) -> dict[str, list[ClassFormula]]:
    """Read the formulas of a file of variants, by the name of the function.

    Raises:
        InputError: If the file does not exist, names a function that is not an exercise, or has an entry whose form is
            not that of docs/teaching/variants.yaml.
    """
    if not file.is_file():
        raise InputFileError("variants", str(file), "name a file of variants: docs/teaching is in a checkout only")
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=exercises.YAML_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError("variants", str(file), "expected YAML", problem=f"cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise InputError("variants", str(file), "expected a list of entries for each function")
    known_names = [name for names in exercises.NAMES.values() for name in names]
    formulas: dict[str, list[ClassFormula]] = {}
    for name, entries in content.items():
        check_choice("variants", name, known_names)
        try:
            formulas[name] = [ClassFormula(**entry | {"equation": str(entry["equation"])}) for entry in entries]
        except (TypeError, KeyError):
            formulas[name] = []
        if not formulas[name]:
            raise InputError("variants", name, "expected a list of entries with equation, formula, line, says")
    return formulas


def variant_of(name: str, formula: ClassFormula) -> Exercise:
    """Return the exercise of this name with another formula.

    Raises:
        InputError: If the function has no equation with the formula's tag.
    """
    exercise = exercises.lesson_exercise(name)
    reference = inspect.unwrap(exercise.function)
    source = _variant_source(source_of(reference), name, formula)
    file = f"<{name}, variant {sha256(source.encode()).hexdigest()[:8]}>"
    function = function_from_source(reference, source, file)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exercise = replace(exercise, function=function, task=f"{exercise.task}\n\n{formula.sentence}")
    return _as_variant(exercise, reference, formula.hints)


def _as_variant(exercise: Exercise, lesson_function: Callable, hints: Sequence[str]) -> Exercise:
    """Return the exercise as a variant, whose one known mistake is the lesson's function.

    The other known mistakes are dropped, because they are changed lines of the lesson's formula.
    """
    mistakes = (wrong_function(LESSON_MISTAKE, lesson_function, explanation=LESSON_SAYS),)
    return replace(exercise, is_variant=True, mistakes=mistakes, hints=[*hints] or exercise.hints)


def _variant_source(source: str, name: str, formula: ClassFormula) -> str:
    """Return the source of the reference with the formula in its docstring and the formula's line in its code.

    The docstring keeps its equations and its sections, such as "Args:". Its prose is removed, because it explains the
    formula of the lesson and cites its source.
    """
    tag = formula.equation
    try:
        source = with_lines(source, {tag: formula.line})
    except ValueError:
        raise InputError("equation", tag, f"expected the tag of one line of {name}") from None
    docstring = re.search(r'r"""(.*?)"""', source, re.DOTALL)
    if docstring is None:
        raise InputError("equation", tag, f"{name} has no docstring with equations")
    lines = [line.removeprefix("    ") for line in docstring[1].splitlines()]
    lines = [rf"{formula.formula} \tag{{{tag}}}" if rf"\tag{{{tag}}}" in line else line for line in lines]
    first, *paragraphs = "\n".join(lines).split("\n\n")
    remaining = [p for p in paragraphs if r"\tag{" in p or p.startswith(("Args:", "Returns:", "Raises:"))]
    text = textwrap.indent("\n\n".join([(formula.title or first).strip(), *remaining]).strip(), "    ").strip()
    return f'{source[: docstring.start()]}r"""{text}\n    """{source[docstring.end() :]}'


def key_text(key: ClassKey, notebook: str) -> str:
    """Return the teacher's key to a notebook: for each variant, the sentence on its formula and the right function."""
    solutions = []
    for name, exercise in key.exercises(notebook).items():
        sentence = exercise.task.rpartition("\n\n")[2].replace("**", "")
        solutions.append(f"# {notebook}, {name}. {sentence}\n\n{stub_head(exercise)}{solution_body(exercise)}")
    return "\n\n".join(solutions)


def results_of(variants: Mapping[str, Exercise], target: str = "en") -> str:
    """Return the results of these variants on the inputs that students see, and their hints, as text.

    The text goes into a cell of the released notebook, which passes it to `class_variant`.
    """
    content = {}
    for name, exercise in variants.items():
        hints = [translate(hint, target) for hint in exercise.hints]
        outcomes = base64.b64encode(to_bytes(expected_outcomes(exercise, 0))).decode()
        content[name] = {"hints": hints, "outcomes": outcomes}
    return "\n".join(textwrap.wrap(base64.b64encode(zlib.compress(json.dumps(content).encode(), 9)).decode(), 110))


def class_variant(results: str) -> None:
    """Make `check` and `hint` use the formulas of your class. A cell of your notebook calls this function.

    Args:
        results: The text that `results_of` wrote into that cell.

    Raises:
        InputError: If the text was changed.
    """
    try:
        content = json.loads(zlib.decompress(base64.b64decode("".join(results.split()), validate=True)))
        outcomes = {name: tuple(from_bytes(base64.b64decode(entry["outcomes"]))) for name, entry in content.items()}
    except (ValueError, zlib.error, TypeError, KeyError, AttributeError):
        expected = "copy this cell again from the notebook that was handed out"
        raise InputError("results", None, expected, problem="are not as they were handed out") from None
    for name, recorded_outcomes in outcomes.items():
        lesson = exercises.lesson_exercise(name)
        exercise = _as_variant(lesson, inspect.unwrap(lesson.function), content[name]["hints"])
        exercises.register_class_exercise(replace(exercise, recorded_outcomes=recorded_outcomes))
    print(_(fill("Checked by the formulas of your class: {0}", [*outcomes])))
