r"""Stubs: split the source of an exercise's function into what students get and the lines that they write.

Both parts are cut from the current source of the function. A stub keeps the raw docstring, so that `show` can read the
equations of a function that a student has written.
"""

import ast
import importlib
import inspect
import re
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from grpo_lab.base.user_code import Function, functions_of_cell, parse_cell
from grpo_lab.course.exercise import Exercise, source_of
from grpo_lab.formulas.lines import with_lines, without_markers

# The message of the NotImplementedError that the library's function raises while a student's answer is tried.
LIBRARY_GONE = "this is the exercise: its body is yours to write"
YOUR_LINES = "# your lines (the checks of the arguments above are given)"


def stub_source(exercise: Exercise) -> str:
    """Return the function as students get it: its head, then either NotImplementedError or the lines to repair."""
    missing = f'    raise NotImplementedError("{exercise.name} is not written yet")\n'
    return stub_head(exercise) + (planted_body(exercise) or missing)


def stub_head(exercise: Exercise) -> str:
    """Return the head of a stub: signature, docstring and the checks of the arguments."""
    source = _split_source(exercise)
    head = source.lines[source.function.lineno - 1 : source.body_start]
    if source.body_start > _docstring_end(source.function):
        head.append(f"    {YOUR_LINES}\n")
    return "".join(head)


def planted_body(exercise: Exercise) -> str:
    """Return the lines below the head with the planted mistakes in them; "" if the exercise has none."""
    return _body(exercise, planted_lines(exercise)) if exercise.planted else ""


def planted_lines(exercise: Exercise) -> dict[str, str]:
    """Return the lines of the planted mistakes, by their address in the function."""
    return {address: line for name in exercise.planted for address, line in exercise.mistake(name).lines.items()}


def is_as_released(source: str, exercises: dict[str, Exercise]) -> bool:
    """Return True if a cell is untouched: each function of an exercise in it still has exactly the stub's lines."""
    if parse_cell(source) is None:
        return False  # a stub can be parsed, so a student has changed this cell
    functions = functions_of_cell(source)
    answers = [(function, exercises[function.name]) for function in functions if function.name in exercises]
    return all(_answer_lines(function) == _stub_lines(exercise) for function, exercise in answers)


def _answer_lines(function: Function) -> list[str]:
    """Return the statements below the docstring and the given checks, as text that ignores the layout."""
    return [ast.dump(statement) for statement in body_of(function)[len(given_checks(function)) :]]


@cache
def _stub_lines(exercise: Exercise) -> list[str]:
    return _answer_lines(parsed_function(stub_source(exercise)))


def solution_body(exercise: Exercise) -> str:
    """Return the lines that the stub lacks, indented as in the function: all lines below the given checks."""
    return _body(exercise, {})


def _body(exercise: Exercise, changes: dict[str, str]) -> str:
    source = _split_source(exercise)
    changed_lines = with_lines("".join(source.lines), changes).splitlines(keepends=True)
    return without_markers("".join(changed_lines[source.body_start :]))


def imports_of(exercise: Exercise, source: str) -> tuple[str, ...]:
    """Return the import lines that this source needs, such as "from jaxtyping import Float".

    There is a line for each name in the source that the reference's module imports or defines.
    """
    return _import_lines(exercise, {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)})


def named_imports(exercise: Exercise) -> tuple[str, ...]:
    """Return import lines for the package's functions that docstring or task quote, such as `completion_mask`."""
    named = set(re.findall(r"`(\w+)[`(]", f"{exercise.function.__doc__} {exercise.task}"))
    return tuple(line for line in _import_lines(exercise, named) if line.startswith("from grpo_lab"))


def parsed_function(source: str) -> ast.FunctionDef:
    """Return the syntax tree of the function that a source consists of."""
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def given_checks(function: Function) -> list[ast.stmt]:
    """Return the argument checks at the beginning of the body. A stub keeps them: students need not write them."""
    return list(takewhile(_is_given, body_of(function)))


def body_of(function: Function) -> list[ast.stmt]:
    """Return the statements of a function below its docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def is_check(statement: ast.stmt) -> bool:
    """Return True for a call of a `check_*` function, and for an `if` that only raises or calls one."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name.lstrip("_").startswith("check_")
        case ast.If(body=[ast.Raise()], orelse=[]):
            return True
        case ast.If(body=[ast.Expr() as only], orelse=[]):
            return is_check(only)
    return False


def _is_given(statement: ast.stmt) -> bool:
    """Return True for a check that a student's notebook can run: it uses no private name of the library."""
    names = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return is_check(statement) and not any(name.startswith("_") for name in names)


class _SplitSource(NamedTuple):
    """The source of an exercise's function.

    Attributes:
        lines: The lines with their ends.
        function: The syntax tree.
        body_start: The index of the first line that students write.
    """

    lines: list[str]
    function: ast.FunctionDef
    body_start: int


def _split_source(exercise: Exercise) -> _SplitSource:
    source = source_of(exercise.function)
    function = parsed_function(source)
    checks = given_checks(function)
    body_start = _end_line(checks[-1]) if checks else _docstring_end(function)
    return _SplitSource([f"{line}\n" for line in source.splitlines()], function, body_start)


def _docstring_end(node: ast.FunctionDef) -> int:
    return _end_line(node.body[0]) if ast.get_docstring(node) is not None else node.body[0].lineno - 1


def _end_line(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None  # the parser sets it
    return statement.end_lineno


def _import_lines(exercise: Exercise, names: set[str]) -> tuple[str, ...]:
    """Return an import line for each of these names that the reference's module imports or defines."""
    module = inspect.getmodule(inspect.unwrap(exercise.function))
    assert module is not None  # references are functions of the package
    module_names = names & vars(module).keys() - {exercise.name}
    lines = {name: f"from {_public_module(module.__name__, name)} import {name}" for name in module_names}
    for statement in ast.parse(inspect.getsource(module)).body:
        package = getattr(statement, "module", "")
        for name in module_names & {alias.name for alias in getattr(statement, "names", ())}:
            start = f"from {_public_module(package, name)} " if package else ""
            lines[name] = f"{start}import {name}"
    return tuple(sorted(lines.values()))


def _public_module(module: str, name: str) -> str:
    """Return the module to import a name from: the outermost package of grpo_lab that exports it, else `module`."""
    parts, value = module.split("."), getattr(importlib.import_module(module), name, None)
    packages = [".".join(parts[:depth]) for depth in range(2, len(parts))] if parts[0] == "grpo_lab" else []
    exporting = (package for package in packages if vars(importlib.import_module(package)).get(name) is value)
    return next(exporting, module)
