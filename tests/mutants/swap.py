"""Put changed code into live modules, and take it out again.

Whoever imported a function holds the function object, so its code is exchanged inside the object. The decorators around
it (shapes checked at run time, `no_grad`) stay as they are.
"""

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, ModuleType

from tests.mutants.mutant import Mutant


@contextmanager
def swapped(mutant: Mutant) -> Iterator[None]:
    """The mutant instead of the original, inside the `with`."""
    module = importlib.import_module(mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    changes = _changes(ast.parse(mutant.original).body, ast.parse(mutant.mutated).body)
    compiled = compile(mutant.mutated, inspect.getfile(module), "exec", dont_inherit=True)
    codes = {code.co_qualname: code for code in _codes(compiled)}
    with ExitStack() as stack:
        for change in changes:
            stack.callback(_apply(module, change, codes))
        yield


def _changes(before: list[ast.stmt], after: list[ast.stmt], inside: str = "") -> list[str | ast.stmt]:
    """What differs: the qualified names of functions, and the assignments of module constants."""
    if len(before) != len(after):
        raise ValueError(f"a mutant may change statements of {inside or 'a module'}, not add or remove some")
    found: list[str | ast.stmt] = []
    for old, new in zip(before, after, strict=True):
        if ast.dump(old) == ast.dump(new):
            continue
        if isinstance(new, ast.FunctionDef) and ast.dump(old.args) == ast.dump(new.args):
            found.append(inside + new.name)
        elif isinstance(new, ast.ClassDef):
            found += _changes(old.body, new.body, f"{inside}{new.name}.")
        elif isinstance(new, ast.Assign) and not inside:
            found.append(new)
        else:
            raise ValueError(f"this cannot be exchanged while the module lives: {ast.unparse(new)[:100]}")
    return found


def _apply(module: ModuleType, change: str | ast.stmt, codes: dict[str, CodeType]) -> Callable[[], None]:
    """Make one change; returns what undoes it."""
    if isinstance(change, str):
        function = _function(module, change)
        old = function.__code__
        function.__code__ = codes[change]
        return lambda: setattr(function, "__code__", old)
    kept = dict(vars(module))
    exec(compile(ast.Module([change], []), module.__name__, "exec"), vars(module))
    return lambda: vars(module).update(kept)


def _function(module: ModuleType, qualified_name: str):
    found = module
    for name in qualified_name.split("."):
        found = vars(found)[name]
    for wrapper in ("__func__", "fget"):
        found = getattr(found, wrapper, found)
    return inspect.unwrap(found)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
