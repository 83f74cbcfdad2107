r"""The source of an exercise without its answer, and the answer without the rest; both from the live source.

The stub keeps the docstring as it is written, raw, so that `show` can read the equations of what a student writes.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable

from grpo_lab.course.blank import missing_text
from grpo_lab.course.exercise import Exercise


def stub_source(exercise: Exercise) -> str:
    """The function as the student gets it: no decorators, signature and docstring whole, no body."""
    lines, node = _source(exercise)
    end = node.body[0].end_lineno if ast.get_docstring(node) is not None else node.body[0].lineno - 1
    missing = f'    raise NotImplementedError("{missing_text(exercise.name)}")\n'
    return "".join([*lines[node.lineno - 1 : end], missing])


def solution_source(exercise: Exercise) -> str:
    """The whole reference, without decorators."""
    lines, node = _source(exercise)
    return "".join(lines[node.lineno - 1 : node.end_lineno])


def solution_body(exercise: Exercise) -> str:
    """The lines behind the docstring, indented as in the function."""
    lines, node = _source(exercise)
    start = node.body[0].end_lineno if ast.get_docstring(node) is not None else node.body[0].lineno - 1
    return "".join(lines[start : node.end_lineno])


def stub_imports(exercise: Exercise) -> tuple[str, ...]:
    """The import lines that the signature needs, such as "from jaxtyping import Float"."""
    _, node = _source(exercise)
    return _imports(exercise, [node.args, *([node.returns] if node.returns else [])])


def solution_imports(exercise: Exercise) -> tuple[str, ...]:
    """The import lines that the whole reference needs; helpers of its own module are imported from there."""
    return _imports(exercise, [_source(exercise)[1]])


def _source(exercise: Exercise) -> tuple[list[str], ast.FunctionDef]:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(exercise.function)))
    node = ast.parse(source).body[0]
    if not isinstance(node, ast.FunctionDef) or node.body[0].lineno == node.lineno:
        raise ValueError(f"{exercise.name} has to be a def whose body starts on a line of its own")
    return [f"{line}\n" for line in source.splitlines()], node


def _imports(exercise: Exercise, nodes: Iterable[ast.AST]) -> tuple[str, ...]:
    """One line for each name of the nodes that the module of the reference imports or defines."""
    used = {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)} - {exercise.name}
    module = inspect.getmodule(inspect.unwrap(exercise.function))
    lines = {}
    for statement in ast.parse(inspect.getsource(module)).body:
        lines |= dict(_bound(statement, module.__name__))
    return tuple(sorted({lines[name] for name in used if name in lines}, key=_import_order))


def _bound(statement: ast.stmt, module: str) -> Iterable[tuple[str, str]]:
    """(name, import line) for the names that a statement at the top of a module gives."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            start = f"from {statement.module} " if isinstance(statement, ast.ImportFrom) else ""
            name = alias.asname or alias.name.split(".")[0]
            yield name, f"{start}import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
    elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name, f"from {module} import {statement.name}"
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for name in (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)):
            yield name, f"from {module} import {name}"


def _import_order(line: str) -> tuple[bool, str, str]:
    words = line.split()
    return words[1].startswith("grpo_lab"), words[1].lower(), line
