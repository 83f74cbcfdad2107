"""A copy of grpo_lab without the answers: what a submission imports while it is graded.

The bodies of the functions that were to be written are gone, and so are the wrong answers with their helpers, which are
often half of a right one. What the cases need to build their inputs stays.
"""

import ast
import inspect
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpo_lab
from grpo_lab.base.checks import InputError
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.stub import LIBRARY_GONE

SOURCE = Path(grpo_lab.__file__).resolve().parent
_LEFT_OUT = ("__pycache__", "*.pyc", "bench", "lessons", "release")
_GONE = ast.parse(f"raise NotImplementedError({LIBRARY_GONE!r})").body


def make_copy(folder: Path, exercises: Iterable[Exercise]) -> None:
    """Copy the package into the folder, stripped and read-only. The folder goes onto the path of the worker."""
    target = folder / "grpo_lab"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for exercise in exercises:
        source_file = Path(inspect.getsourcefile(inspect.unwrap(exercise.function)))
        path = target / source_file.resolve().relative_to(SOURCE)
        path.write_text(without_body(path.read_text(encoding="utf-8"), exercise.name), encoding="utf-8")
    _strip_wrong_answers(target / "course" / "exercises")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def library_source(exercise: Exercise) -> str:
    """The function as it stands in the package, without what it is decorated or annotated with: to be put back."""
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(exercise.function)))).body[0]
    node.decorator_list, node.returns = [], None
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        argument.annotation = None
    return ast.unparse(node)


def without_body(source: str, name: str) -> str:
    """The source with nothing but the docstring left of this function.

    Raises:
        ValueError: if it is not defined at the top level of the source.
    """
    tree = ast.parse(source)
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not definitions:
        raise InputError("name", name, "expected a function at the top level of the source")
    for node in definitions:
        node.body = [*node.body[: ast.get_docstring(node) is not None], *_GONE]
    return ast.unparse(tree)


def _strip_wrong_answers(folder: Path) -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("nb*.py"))}
    for call in (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if getattr(call.func, "id", "") == "Exercise":
            for keyword in call.keywords:  # what a mistake changes is part of an answer
                keyword.value = ast.Dict([], []) if keyword.arg == "mistakes" else keyword.value
    while unused := list(_unused(trees.values())):
        for tree, node in unused:
            tree.body.remove(node)
    for path, tree in trees.items():
        path.write_text(ast.unparse(tree), encoding="utf-8")


def _unused(trees: Iterable[ast.Module]) -> Iterator[tuple[ast.Module, ast.FunctionDef]]:
    """The functions that no other statement of their file mentions, and that no file imports."""
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {alias.name for node in imports for alias in node.names}
    for tree in trees:
        for node in [node for node in tree.body if isinstance(node, ast.FunctionDef)]:
            other_nodes = [n for statement in tree.body if statement is not node for n in ast.walk(statement)]
            if node.name not in imported | {n.id for n in other_nodes if isinstance(n, ast.Name)}:
                yield tree, node
