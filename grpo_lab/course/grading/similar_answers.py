"""Find answers that are alike, or that are published source. They are hints, since short right answers are often alike.

Answers are compared without docstring, annotations, comments, layout and the given checks, in three ways:

- With other students' answers by copydetect (the extra `teach`), which implements the winnowing of Moss. Neither names
  nor the order of parts count.
- With the source of the library, and of the right answers in its public tests, by their words (`difflib`). A few
  changed words do not matter.
- With the key of a class's own formula word for word.
"""

import ast
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable
from difflib import SequenceMatcher
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from grpo_lab.base.user_code import Function, functions_of_cell
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.class_grades import ClassGrades
from grpo_lab.course.grading.messages import Cell
from grpo_lab.course.stub import body_of, given_checks, solution_body

MIN_NODES = 25  # an answer whose syntax tree has no more nodes is not compared: short answers are equal by chance
COMMON_SHARE = 0.25  # a passage that a larger share of the class has is common, and does not count
FINGERPRINT_LENGTH = 15  # characters of the passages that copydetect compares
MIN_DISTINCT_LENGTH = 40  # characters that an answer must have left without common passages
MIN_ALIKE_SHARE = 0.8  # the share in common from which two answers are alike
LONG_ANSWER_NODES = 100  # an answer with more nodes than this is also recognised with other names
MIN_PASTED_SHARE = 0.95  # the share of words in common from which an answer is taken for published source
# This folder exists in a checkout, not in an installed package.
PUBLISHED_ANSWERS = Path(__file__).parents[3] / "tests" / "course" / "right_answers"


class Answer(NamedTuple):
    """The statements of a function below its docstring and the given checks, in the forms that are compared.

    In all of them, a number is replaced by its hash, since it may be long, and a text by "".

    Attributes:
        shape: The syntax tree as text, in which names are replaced by numbers.
        words: The names, keywords and constants, in order.
        num_nodes: Number of nodes of the syntax tree.
        text: The code.
    """

    shape: str
    words: list[str]
    num_nodes: int
    text: str


class SimilarPair(NamedTuple):
    """Two students, and the names of the exercises in which their answers are alike."""

    first: str
    second: str
    exercises: list[str]


def similar_answers(grades: ClassGrades) -> list[SimilarPair] | None:
    """Return pairs of students with the exercises in which their answers are alike; None without copydetect.

    Passages that the library or a published key has, or more than a quarter of the class, do not count.
    """
    if find_spec("copydetect") is None:
        return None
    submissions = [graded.submission for graded in grades.handed_in]
    answers = {
        submission.student: _answers_of_student(submission.cells, grades.exercises) for submission in submissions
    }
    pairs: dict[tuple[str, str], list[str]] = {}  # the names of exercises by pair of students
    for name, exercise in grades.exercises.items():
        texts = {student: answers_of[name].text for student, answers_of in answers.items() if name in answers_of}
        published = [answer.text for answer in (library_answer(exercise), *published_answers(exercise))]
        for pair in similar_pairs(texts, published, len(answers)):
            pairs.setdefault(pair, []).append(name)
    similar = [SimilarPair(*pair, names) for pair, names in pairs.items()]
    return sorted(similar, key=lambda pair: (-len(pair.exercises), pair))


def similar_pairs(texts: dict[str, str], published: list[str], class_size: int) -> list[tuple[str, str]]:
    """Return the pairs of students whose answers to one exercise are alike.

    Args:
        texts: The answers by student.
        published: The published answers.
        class_size: Number of students in the class.
    """
    num_students = Counter(value for text in texts.values() for value in _fingerprint(text).hashes)
    common = {value for value, number in num_students.items() if number > max(2, COMMON_SHARE * class_size)}
    common |= {value for text in published for value in _fingerprint(text).hashes}
    fingerprints = {student: _fingerprint(text, common) for student, text in texts.items()}
    compared = {
        student: fingerprint
        for student, fingerprint in fingerprints.items()
        if fingerprint.token_coverage >= MIN_DISTINCT_LENGTH
    }
    return [
        (a, b) for a, b in combinations(compared, 2) if _share_in_common(compared[a], compared[b]) >= MIN_ALIKE_SHARE
    ]


def _fingerprint(text: str, common: Iterable[int] = ()):
    """Return copydetect's fingerprint of an answer, in which names and constants do not count.

    common: The hashes of passages that are left out.
    """
    from copydetect import CodeFingerprint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # copydetect warns of an answer that is shorter than one passage
        return CodeFingerprint("answer.py", FINGERPRINT_LENGTH, 1, boilerplate=[*common], fp=io.StringIO(text))


def _share_in_common(first, second) -> float:
    """Return the share of the longer of two answers that is also in the other one."""
    from copydetect import compare_files

    return min(compare_files(first, second)[1])


def pasted_answers(grades: ClassGrades) -> dict[str, list[str]]:
    """Return the exercises, by student, for which the answer is nearly the library's source or a published key.

    A long answer is also recognised with other names. Exercises with a formula of the class are left out; they are
    compared by `answers_as_in_key`.
    """

    def is_published(exercise: Exercise, answer: Answer) -> bool:
        return any(_is_pasted(answer, source) for source in (library_answer(exercise), *published_answers(exercise)))

    lesson_exercises = {name: exercise for name, exercise in grades.exercises.items() if not exercise.is_variant}
    return _matching_exercises(grades, lesson_exercises, is_published)


def answers_as_in_key(grades: ClassGrades) -> dict[str, list[str]]:
    """Return the exercises with a formula of the class, by student, for which the answer is the key word for word.

    The key differs from the lesson's function in one line. So an answer that is only nearly the key may be the lesson's
    function with a change by the student.
    """

    def is_key(exercise: Exercise, answer: Answer) -> bool:
        return answer.words == library_answer(exercise).words

    return _matching_exercises(grades, grades.variants, is_key)


def _matching_exercises(
    grades: ClassGrades, exercises: dict[str, Exercise], matches: Callable[[Exercise, Answer], bool]
) -> dict[str, list[str]]:
    """Return the names of those of these exercises, by student, for which the answer matches.

    matches: A function that decides it for an exercise and an answer.
    """
    exercises_of_student = {}
    for graded in grades.handed_in:
        answers = _answers_of_student(graded.submission.cells, exercises)
        if names := [name for name in exercises if name in answers and matches(exercises[name], answers[name])]:
            exercises_of_student[graded.submission.student] = names
    return exercises_of_student


def _is_pasted(answer: Answer, source: Answer) -> bool:
    if answer.num_nodes > LONG_ANSWER_NODES and answer.shape == source.shape:
        return True
    matcher = SequenceMatcher(None, answer.words, source.words, autojunk=False)
    return matcher.real_quick_ratio() >= MIN_PASTED_SHARE and matcher.ratio() >= MIN_PASTED_SHARE


def _answers_of_student(cells: list[Cell], exercises: dict[str, Exercise]) -> dict[str, Answer]:
    """Return a student's answers by exercise, without short ones.

    Repair exercises are left out, because nearly all of an answer was in the stub.
    """
    compared = {name: exercise for name, exercise in exercises.items() if not exercise.planted}
    answers: dict[str, Answer] = {}
    for cell in cells:
        answers |= answers_in(cell.source, compared)
    return {name: answer for name, answer in answers.items() if answer.num_nodes > MIN_NODES}


def answers_in(source: str, exercises: Container[str]) -> dict[str, Answer]:
    """Return the answers in a cell by exercise; none if the cell cannot be parsed."""
    functions = functions_of_cell(source)
    return {function.name: _answer(function) for function in functions if function.name in exercises}


@cache
def library_answer(exercise: Exercise) -> Answer:
    return answers_in(f"def {exercise.name}():\n{solution_body(exercise)}", {exercise.name})[exercise.name]


@cache
def published_answers(exercise: Exercise) -> list[Answer]:
    """Return the published right answers to an exercise.

    A file in `PUBLISHED_ANSWERS` has a dictionary that lists its functions by exercise.
    """
    path = PUBLISHED_ANSWERS / f"nb{exercise.notebook}.py"
    tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assigned = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    tables = [value for value in assigned if isinstance(value, ast.Dict)]
    pairs = [pair for table in tables for pair in zip(table.keys, table.values, strict=True)]
    entries = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
    if exercise.name not in entries:
        return []
    names = [getattr(node, "id", "") for node in ast.walk(entries[exercise.name])]
    return [_answer(functions[name]) for name in names if name in functions]


def _answer(function: Function) -> Answer:
    body = ast.Module(body_of(function)[len(given_checks(function)) :], [])
    nodes = [node for node in ast.walk(body) if not isinstance(node, ast.expr_context)]
    for node in nodes:
        if isinstance(node, ast.Constant):
            node.value = "" if isinstance(node.value, str | bytes) else hash(node.value)
    text = ast.unparse(body)
    words = re.findall(r"\w+", text)
    numbers: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name):
            node.id = str(numbers.setdefault(node.id, len(numbers)))
    return Answer(ast.dump(body), words, len(nodes), text)
