"""All equations of the package, with the lines that compute them."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

from grpo_lab.formulas.source import Equation, read_equations


def formula_map(modules: Iterable[ModuleType] | None = None) -> dict[str, Equation]:
    """Every equation of the modules (default: all of grpo_lab that carry some) by its tag, in the order of the tags.

    Raises:
        ValueError: where `read_equations` raises for one of the functions, if a tag stands in two of them, or if an
            equation stands outside of every function's docstring, where nothing would check it.
    """
    found: dict[str, Equation] = {}
    for module in _package_modules() if modules is None else modules:
        before = len(found)
        for equation in (e for function in _functions(module) for e in read_equations(function)):
            if equation.tag in found:
                both = f"{found[equation.tag].function} and {equation.function}"
                raise ValueError(f"tag ({equation.tag}) stands twice: in {both}")
            found[equation.tag] = equation
        written = len(_tag_lines(inspect.getsource(module)))
        if written != len(found) - before:
            mapped = f"{len(found) - before} of the {written} lines"
            raise ValueError(rf"{module.__name__}: only {mapped} ending in a \tag stand in the docstring of a function")
    return dict(sorted(found.items(), key=lambda item: tag_key(item[0])))


def tag_key(tag: str) -> tuple[int, ...]:
    """Sorts "2.10" behind "2.9"."""
    return tuple(map(int, tag.split(".")))


def _functions(module: ModuleType) -> Iterator[Callable]:
    """Functions that the module defines, private ones too."""
    for value in vars(module).values():
        function = inspect.unwrap(value) if callable(value) else None
        if inspect.isfunction(function) and function.__module__ == module.__name__ and function.__name__ != "<lambda>":
            yield function


def _package_modules() -> list[ModuleType]:
    """Modules of grpo_lab with equations; not the course, whose exercises may repeat them, nor our own examples."""
    root = Path(__file__).parents[1]
    paths = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
    named = [
        ".".join(("grpo_lab", *path.with_suffix("").parts)).removesuffix(".__init__")
        for path in paths
        if path.parts[0] not in ("assets", "course", "formulas")
        and _tag_lines((root / path).read_text(encoding="utf-8"))
    ]
    return [importlib.import_module(name) for name in named]


def _tag_lines(source: str) -> list[str]:
    return re.findall(r"^.*\\tag\{\d+\.\d+\}\s*$", source, re.MULTILINE)
