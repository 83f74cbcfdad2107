r"""Stubs: an exercise without its answer, and the answer without the rest.

All comes from the live source. A stub keeps the docstring as it is written, raw, so that `show` can read the equations
of what a student writes.
"""

import ast
import importlib
import inspect
import re
from functools import cache
from itertools import takewhile

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.wrong_answers import source_of
from grpo_lab.formulas.lines import with_lines, without_markers

LIBRARY_GONE = "this is the exercise: its body is yours to write"  # what the library raises where work is marked

YOUR_LINES = "# your lines (the checks of the arguments above are given)"


def stub_source(exercise: Exercise) -> str:
    """The function as the student gets it: its head, and the wrong lines where it is to be repaired."""
    missing = f'    raise NotImplementedError("{exercise.name} is not written yet")\n'
    return stub_head(exercise) + (planted_body(exercise) or missing)


def stub_head(exercise: Exercise) -> str:
    """The head of a stub: signature, docstring and the checks of its arguments."""
    lines, node, body_start = _parts(exercise)
    head = lines[node.lineno - 1 : body_start]
    if body_start > _docstring_end(node):
        head.append(f"    {YOUR_LINES}\n")
    return "".join(head)


def planted_body(exercise: Exercise) -> str:
    """The lines behind the docstring with the mistakes that are planted in them; "" where none is."""
    return _body(exercise, planted_lines(exercise)) if exercise.planted else ""


def planted_lines(exercise: Exercise) -> dict[str, str]:
    """The lines of the planted mistakes, by their address in the function."""
    return {address: line for name in exercise.planted for address, line in exercise.misconceptions[name].lines.items()}


def is_as_released(source: str, exercises: dict[str, Exercise]) -> bool:
    """True if a cell holds no work: each function of an exercise in it has the lines of its stub, and no others."""
    try:
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # somebody wrote it
    own = [(function, exercises[function.name]) for function in functions if function.name in exercises]
    return all(_own_lines(function) == _stub_lines(exercise) for function, exercise in own)


def _own_lines(function: ast.FunctionDef) -> list[str]:
    return [ast.dump(statement) for statement in body_of(function)[len(given_checks(function)) :]]


@cache
def _stub_lines(exercise: Exercise) -> list[str]:
    return _own_lines(ast.parse(stub_source(exercise)).body[0])


def solution_body(exercise: Exercise) -> str:
    """The lines that the stub lacks: those behind the docstring and the given checks, indented as in the function."""
    return _body(exercise, {})


def _body(exercise: Exercise, changes: dict[str, str]) -> str:
    lines, _, body_start = _parts(exercise)
    changed = with_lines("".join(lines), changes).splitlines(keepends=True)
    return without_markers("".join(changed[body_start:]))


def imports_of(exercise: Exercise, source: str) -> tuple[str, ...]:
    """Import lines, such as "from jaxtyping import Float", for what this source names of the reference's module."""
    return _import_lines(exercise, {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)})


def named_imports(exercise: Exercise) -> tuple[str, ...]:
    """The import lines of what docstring and task name of the package, in backticks, such as `completion_mask`."""
    named = set(re.findall(r"`(\w+)[`(]", f"{exercise.function.__doc__} {exercise.task}"))
    return tuple(line for line in _import_lines(exercise, named) if line.startswith("from grpo_lab"))


def given_checks(function: ast.FunctionDef) -> list[ast.stmt]:
    """The checks of arguments that lead the body: a stub keeps them, since writing them is no part of an exercise."""
    return list(takewhile(_is_given, body_of(function)))


def body_of(function: ast.FunctionDef) -> list[ast.stmt]:
    """The statements behind the docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def is_check(statement: ast.stmt) -> bool:
    """Recognise a call of a `check_*` function, and an `if` that does nothing but raise or check."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name.lstrip("_").startswith("check_")
        case ast.If(body=[ast.Raise()], orelse=[]):
            return True
        case ast.If(body=[ast.Expr() as only], orelse=[]):
            return is_check(only)
    return False


def _is_given(statement: ast.stmt) -> bool:
    """A check that a student's notebook can run: what is private to the library stays there."""
    names = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return is_check(statement) and not any(name.startswith("_") for name in names)


def _parts(exercise: Exercise) -> tuple[list[str], ast.FunctionDef, int]:
    """The lines of the function, its tree, and the number of lines up to where the student's own begin."""
    lines, node = _source(exercise)
    checks = given_checks(node)
    return lines, node, checks[-1].end_lineno if checks else _docstring_end(node)


def _docstring_end(node: ast.FunctionDef) -> int:
    return node.body[0].end_lineno if ast.get_docstring(node) is not None else node.body[0].lineno - 1


def _source(exercise: Exercise) -> tuple[list[str], ast.FunctionDef]:
    source = source_of(inspect.unwrap(exercise.function))
    node = ast.parse(source).body[0]
    return [f"{line}\n" for line in source.splitlines()], node


def _import_lines(exercise: Exercise, names: set[str]) -> tuple[str, ...]:
    """One line for each of the names that the module of the reference imports or defines."""
    module = inspect.getmodule(inspect.unwrap(exercise.function))
    own = names & vars(module).keys() - {exercise.name}
    lines = {name: f"from {_public_module(module.__name__, name)} import {name}" for name in own}
    for statement in ast.parse(inspect.getsource(module)).body:
        package = getattr(statement, "module", "")
        for name in own & {alias.name for alias in getattr(statement, "names", ())}:
            start = f"from {_public_module(package, name)} " if package else ""
            lines[name] = f"{start}import {name}"
    return tuple(sorted(lines.values()))


def _public_module(module: str, name: str) -> str:
    """The module to import a name from: the outermost package of grpo_lab that exports it, or else the module."""
    parts, value = module.split("."), getattr(importlib.import_module(module), name, None)
    packages = [".".join(parts[:depth]) for depth in range(2, len(parts))] if parts[0] == "grpo_lab" else []
    exporting = (package for package in packages if vars(importlib.import_module(package)).get(name) is value)
    return next(exporting, module)
