"""A copy of grpo_lab without the answers, which a submission imports while it is graded.

The functions of the exercises have no bodies in the copy. The wrong answers and their helpers are removed as well,
because a wrong answer is often nearly right. The functions that build the inputs of the cases stay.
"""

import ast
import inspect
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpo_lab
from grpo_lab.base.checks import InputError
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.stub import LIBRARY_GONE

SOURCE = Path(grpo_lab.__file__).resolve().parent
_LEFT_OUT = ("__pycache__", "*.pyc", "bench", "lessons", "release")
_REPLACED_BODY = ast.parse(f"raise NotImplementedError({LIBRARY_GONE!r})").body


def make_copy(folder: Path, exercises: Iterable[Exercise]) -> None:
    """Copy the package into a folder, without the answers to these exercises, and make it read-only.

    The process that runs a submission has this folder on its import path.
    """
    target = folder / "grpo_lab"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for exercise in exercises:
        source_file = Path(inspect.getfile(inspect.unwrap(exercise.function)))
        path = target / source_file.resolve().relative_to(SOURCE)
        path.write_text(source_without_body(path.read_text(encoding="utf-8"), exercise.name), encoding="utf-8")
    _strip_wrong_answers(target / "course" / "exercises")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def source_without_body(source: str, name: str) -> str:
    """Return the source of a module in which the function of this name only raises an error.

    Raises:
        ValueError: If no function of this name is defined at the top level of the source.
    """
    tree = ast.parse(source)
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not definitions:
        raise InputError("name", name, "expected a function at the top level of the source")
    for node in definitions:
        docstring = node.body[:1] if ast.get_docstring(node) is not None else []
        node.body = [*docstring, *_REPLACED_BODY]
    return ast.unparse(tree)


def _strip_wrong_answers(folder: Path) -> None:
    """Remove the mistakes of all exercises in a folder, and then the functions that nothing uses any more."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("nb*.py"))}
    for call in (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if getattr(call.func, "id", "") == "Exercise":
            for keyword in call.keywords:
                if keyword.arg == "mistakes":
                    keyword.value = ast.Tuple([], ast.Load())
    while unused := list(_unused_functions(trees.values())):
        for tree, node in unused:
            tree.body.remove(node)
    for path, tree in trees.items():
        path.write_text(ast.unparse(tree), encoding="utf-8")


def _unused_functions(trees: Iterable[ast.Module]) -> Iterator[tuple[ast.Module, ast.FunctionDef]]:
    """Yield the functions, each with its module, that no other statement of the module uses and no module imports."""
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {alias.name for node in imports for alias in node.names}
    for tree in trees:
        names = {
            statement: {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            for statement in tree.body
        }
        num_uses = Counter(name for names_of_statement in names.values() for name in names_of_statement)
        for node in [node for node in tree.body if isinstance(node, ast.FunctionDef)]:
            num_other_uses = num_uses[node.name] - (node.name in names[node])
            if node.name not in imported and num_other_uses == 0:
                yield tree, node
