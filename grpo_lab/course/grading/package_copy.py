"""A copy of grpo_lab without the answers: what a submission imports while it is graded.

The bodies of the functions that were to be written are gone, and so are those of the wrong answers, whose helpers are
often half of a right one. What the cases need to build their inputs stays.
"""

import ast
import inspect
import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path

import grpo_lab
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.stub import LIBRARY_GONE

SOURCE = Path(grpo_lab.__file__).resolve().parent
_LEFT_OUT = ("__pycache__", "*.pyc", "bench", "release", "make_tiny_qwen2.py", "tiny_corpus.py")
_GONE = f"raise NotImplementedError({LIBRARY_GONE!r})"


def make_copy(folder: Path, exercises: Iterable[Exercise]) -> Path:
    """Copy the package into the folder, stripped. Returns the folder, which goes onto the path of the worker."""
    target = folder / "grpo_lab"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for exercise in exercises:
        home = Path(inspect.getsourcefile(inspect.unwrap(exercise.function)))
        path = target / home.resolve().relative_to(SOURCE)
        path.write_text(strip_functions(path.read_text(encoding="utf-8"), {exercise.name}), encoding="utf-8")
    _strip_wrong_answers(target / "course" / "exercises")
    _protect(folder)
    return folder


def library_source(exercise: Exercise) -> str:
    """The function as it stands in the package, without what it is decorated or annotated with: to be put back."""
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(exercise.function)))).body[0]
    node.decorator_list, node.returns = [], None
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        argument.annotation = None
    return ast.unparse(node)


def _protect(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def strip_functions(source: str, names: set[str]) -> str:
    """The source with the bodies of these functions gone, docstrings kept.

    Raises:
        ValueError: if one of them is not defined at the top level of the source.
    """
    lines = source.splitlines(keepends=True)
    found = [node for node in ast.parse(source).body if _is_function(node) and node.name in names]
    if missing := names - {node.name for node in found}:
        raise ValueError(f"names has {sorted(missing)[0]!r}; expected functions at the top level of the source")
    for node in sorted(found, key=lambda n: -n.lineno):
        first = node.body[1:] if ast.get_docstring(node) is not None else node.body
        start = first[0].lineno if first else node.body[0].end_lineno + 1
        if not first or node.body[0].lineno == node.lineno:  # only a docstring, or all on one line
            continue
        indent = " " * node.body[0].col_offset
        lines[start - 1 : node.end_lineno] = [f"{indent}{_GONE}\n"]
    return "".join(lines)


def _strip_wrong_answers(folder: Path) -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    needed = _needed(trees)
    for path, tree in trees.items():
        unneeded = {node.name for node in tree.body if _is_function(node) and (path.stem, node.name) not in needed}
        if path != folder / "__init__.py":
            stripped = strip_functions(sources[path], unneeded) if unneeded else sources[path]
            path.write_text(without_changes(stripped), encoding="utf-8")


def without_changes(source: str) -> str:
    """The source without the differences of `changed(f, (before, after), ...)`: `before` is part of an answer."""
    lines = source.splitlines(keepends=True)
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = [node for node in calls if getattr(node.func, "id", "") == "changed" and len(node.args) > 1]
    for node in sorted(found, key=lambda n: (-n.lineno, -n.col_offset)):
        first, last = node.args[0], node
        start, end = (first.end_lineno - 1, first.end_col_offset), (last.end_lineno - 1, last.end_col_offset)
        tail = lines[end[0]].encode()[end[1] :].decode()
        lines[start[0] : end[0] + 1] = [lines[start[0]].encode()[: start[1]].decode() + ")" + tail]
    return "".join(lines)


def _needed(trees: dict[Path, ast.Module]) -> set[tuple[str, str]]:
    """(file, name) of what is used outside of misconceptions, or by a function or class that is needed itself."""
    definitions: dict[tuple[str, str], ast.AST] = {}
    origin: dict[tuple[str, str], tuple[str, str]] = {}  # a name in the file that imports it -> in the one that has it
    waiting: list[tuple[str, str]] = []
    for file, node in ((path.stem, node) for path, tree in trees.items() for node in tree.body):
        if _is_function(node) or isinstance(node, ast.ClassDef):
            definitions[file, node.name] = node
        elif isinstance(node, ast.ImportFrom):
            home = node.module.split(".")[-1]
            origin |= {(file, alias.asname or alias.name): (home, alias.name) for alias in node.names}
        else:
            waiting += [(file, name) for name in _names(node)]
    needed: set[tuple[str, str]] = set()
    while waiting:
        place = waiting.pop()
        place = origin.get(place, place)
        if place in definitions and place not in needed:
            needed.add(place)
            waiting += [(place[0], name) for name in _names(definitions[place])]
    return needed


def _names(node: ast.AST) -> set[str]:
    """The names that a piece of code reads; those of its misconceptions left out."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Misconception":
        return {"Misconception"}
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    return set().union(*(_names(child) for child in ast.iter_child_nodes(node)))


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
