r"""Variants: exercises with another formula, drawn for a class, with a key for the teacher alone.

    grpo-lab course release DIR --assignment 05 --variant SECRET    the students' notebook, with the class's formula
    grpo-lab course grade DIR --variant SECRET                      judges by it
    grpo-lab course key --variant SECRET                            what was drawn: formulas and functions

A variant puts another equation, and the line that computes it, at a tag of the reference. It has the reference's name,
arguments and inputs, so notebooks, checks and grading stay as they are. The formulas lie in a file of the repository,
or in one of the teacher's, and not in the package: a released notebook holds their *results* on the inputs that
students see, and `check` compares with these.
"""

import base64
import inspect
import json
import linecache
import re
import textwrap
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

import grpo_lab
from grpo_lab.base.checks import InputError, InputFileError, check_choice
from grpo_lab.base.language import Phrase, _, fill, in_language
from grpo_lab.course import exercises
from grpo_lab.course.checking.outcome import expected_outcomes
from grpo_lab.course.checking.outcome_bytes import from_bytes, to_bytes
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.stub import solution_body, stub_head
from grpo_lab.course.wrong_answers import built_anew, source_of
from grpo_lab.formulas.lines import with_lines

VARIANTS = Path(grpo_lab.__file__).parents[1] / "docs" / "teaching" / "variants.yaml"  # of a checkout, for teachers
LESSON = "formula-of-the-lesson"
LESSON_SAYS = (
    "This is the formula of the lesson. Your class has another one: it stands above the cell, and in the docstring."
)
REQUIRED, OPTIONAL = {"equation", "formula", "line", "says"}, ("draw", "title", "hints")


@dataclass(frozen=True)
class ClassKey:
    """The key of a class: a secret, and the file of variants from which it draws."""

    secret: str
    file: Path = VARIANTS

    @cached_property
    def _entries(self) -> dict[str, list[dict[str, Any]]]:
        return read_variants(self.file)

    def exercises(self, notebook: str) -> dict[str, Exercise]:
        """The variants of this class in a notebook, such as "05", by the name of the function."""
        names = [name for name in exercises.NAMES.get(notebook, ()) if name in self._entries]
        return {name: variant_of(name, self._drawn(name)) for name in names}

    def translations(self, notebook: str, target: str) -> dict[str, str]:
        """Return what a notebook of this class says of its formulas, by its English, in another language."""
        entries = (self._drawn(name) for name in exercises.NAMES.get(notebook, ()) if name in self._entries)
        return {str(says): in_language(says, target) for says in map(_class_says, entries)}

    def mark(self, notebook: str) -> str:
        """Eight characters that tell this notebook of a class from that of another one; "" without a variant.

        They depend on the formulas alone, which the class has, and say nothing about the secret.
        """
        names = exercises.NAMES.get(notebook, ())
        formulas = {name: self._drawn(name)["formula"] for name in names if name in self._entries}
        return sha256(json.dumps(formulas).encode()).hexdigest()[:8] if formulas else ""

    def _drawn(self, name: str) -> dict[str, Any]:
        entries = self._entries[name]
        entry = entries[self._number(name, len(entries))]
        for word, values in entry.get("draw", {}).items():
            entry = _with_word(entry, word, values[self._number(f"{name}/{word}", len(values))])
        return entry

    def _number(self, purpose: str, below: int) -> int:
        return int.from_bytes(sha256(f"{self.secret}/{purpose}".encode()).digest()) % below


def read_variants(file: Path = VARIANTS) -> dict[str, list[dict[str, Any]]]:
    """The variants of a file, by the name of the function.

    Raises:
        InputError: if there is no such file, and for an entry that is not of the form of docs/teaching/variants.yaml.
    """
    if not file.is_file():
        raise InputFileError("variants", str(file), "name a file of variants: docs/teaching is in a checkout only")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError("variants", str(file), "expected YAML", found=f"cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise InputError("variants", str(file), "expected a list of entries for each function")
    known = [name for names in exercises.NAMES.values() for name in names]
    for name, entries in content.items():
        check_choice("variants", name, known)
        for entry in entries if isinstance(entries, list) and entries else [{}]:
            if not isinstance(entry, dict) or not REQUIRED <= entry.keys() <= {*REQUIRED, *OPTIONAL}:
                raise InputError("variants", name, f"expected a list of entries with {', '.join(sorted(REQUIRED))}")
    return content


def variant_of(name: str, entry: Mapping[str, Any]) -> Exercise:
    """The exercise with the formula of this entry.

    Raises:
        InputError: if the function has no such equation.
    """
    exercise = exercises.lesson_exercise(name)
    reference = inspect.unwrap(exercise.function)
    source = _source(source_of(reference), name, entry)
    file = f"<{name}, variant {sha256(source.encode()).hexdigest()[:8]}>"
    function = built_anew(reference, source, file)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exercise = replace(exercise, function=function, task=f"{exercise.task}\n\n{_class_says(entry)}")
    return _as_variant(exercise, reference, entry.get("hints", ()))


def _class_says(entry: Mapping[str, Any]) -> Phrase:
    values = str(entry["equation"]), entry["says"]
    return fill("**The formula of your class:** Eq. ({0}) is not that of the lesson. {1}", *values)


def _as_variant(exercise: Exercise, lesson: Callable, hints: Any) -> Exercise:
    """The exercise with one known mistake, the function of the lesson: the others are lines of another formula."""
    return replace(
        exercise, variant=True, mistakes={LESSON: lesson}, says={LESSON: LESSON_SAYS}, equations={},
        hints=[*hints] or exercise.hints,
    )  # fmt: skip


def _source(source: str, name: str, entry: Mapping[str, Any]) -> str:
    """The source of the reference with the formula in its docstring, and the line in its code.

    Of the docstring, what speaks of the lesson's formula goes: the prose behind the equations, and the source.
    """
    tag = str(entry["equation"])
    try:
        source = with_lines(source, {tag: entry["line"]})
    except ValueError:
        raise InputError("equation", tag, f"expected the tag of one line of {name}") from None
    docstring = re.search(r'r"""(.*?)"""', source, re.DOTALL)
    if docstring is None:
        raise InputError("equation", tag, f"{name} has no docstring with equations")
    lines = [line.removeprefix("    ") for line in docstring[1].splitlines()]
    lines = [rf"{entry['formula']} \tag{{{tag}}}" if rf"\tag{{{tag}}}" in line else line for line in lines]
    first, *paragraphs = "\n".join(lines).split("\n\n")
    stays = [p for p in paragraphs if r"\tag{" in p or p.startswith(("Args:", "Returns:", "Raises:"))]
    text = textwrap.indent("\n\n".join([entry.get("title", first).strip(), *stays]).strip(), "    ").strip()
    return f'{source[: docstring.start()]}r"""{text}\n    """{source[docstring.end() :]}'


def _with_word(entry: Mapping[str, Any], word: str, value: Any) -> dict[str, Any]:
    """The entry with a value in the place of a word."""

    def filled(content: Any) -> Any:
        if isinstance(content, list):
            return [filled(part) for part in content]
        return re.sub(rf"\b{word}\b", f"{value:g}", content) if isinstance(content, str) else content

    return {field: filled(content) for field, content in entry.items()}


def key_text(key: ClassKey, notebook: str) -> str:
    """The key that a teacher keeps: of each variant of a notebook its sentence and its function."""
    parts = []
    for name, exercise in key.exercises(notebook).items():
        says = exercise.task.rpartition("\n\n")[2].replace("**", "")
        parts.append(f"# {notebook}, {name}. {says}\n\n{stub_head(exercise)}{solution_body(exercise)}")
    return "\n\n".join(parts)


def results_of(variants: Mapping[str, Exercise], target: str = "en") -> str:
    """The results of these variants on the inputs that students see, and hints, as text for `class_variant`."""
    content = {}
    for name, exercise in variants.items():
        hints = [in_language(hint, target) for hint in exercise.hints]
        outcomes = base64.b64encode(to_bytes(expected_outcomes(exercise, 0))).decode()
        content[name] = {"hints": hints, "outcomes": outcomes}
    return "\n".join(textwrap.wrap(base64.b64encode(zlib.compress(json.dumps(content).encode(), 9)).decode(), 110))


def class_variant(results: str) -> None:
    """Let `check` and `hint` take these functions as your class has them; a cell of your notebook calls it.

    Args:
        results: as that cell has them.

    Raises:
        InputError: if they are not as they were handed out.
    """
    try:
        content = json.loads(zlib.decompress(base64.b64decode("".join(results.split()), validate=True)))
        outcomes = {name: tuple(from_bytes(base64.b64decode(entry["outcomes"]))) for name, entry in content.items()}
    except (ValueError, zlib.error, TypeError, KeyError, AttributeError):
        allowed = "take this cell anew from the notebook that was handed out"
        raise InputError("results", None, allowed, found="are not as they were handed out") from None
    for name, recorded in outcomes.items():
        lesson = exercises.lesson_exercise(name)
        exercise = _as_variant(lesson, inspect.unwrap(lesson.function), content[name]["hints"])
        exercises.register(replace(exercise, recorded=recorded))
    print(_(fill("Checked by the formulas of your class: {0}", [*outcomes])))
