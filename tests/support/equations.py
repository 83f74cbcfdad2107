"""All equations of the package by their tags, in order, with the lines that compute them."""

import functools
import importlib
import inspect
from pathlib import Path

import grpo_lab
from grpo_lab.formulas import Equation, read_equations

PACKAGE = Path(grpo_lab.__file__).parent


def sources(*left_out: str) -> list[tuple[Path, str]]:
    """Return all files of the package with their text, except for the parts that are left out."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] not in left_out]
    return [(path, path.read_text(encoding="utf-8")) for path in paths]


def tag_key(tag: str) -> tuple[int, ...]:
    """Return a key that sorts "2.10" after "2.9"."""
    return tuple(map(int, tag.split(".")))


@functools.cache
def formula_map() -> dict[str, Equation]:
    """Return each equation of the package by its tag, and import the modules with equations.

    The course is left out, because its exercises may repeat equations.
    """
    by_tag = {}
    for path, text in sources("course", "formulas"):
        if r"\tag{" in text:
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            values = (
                inspect.unwrap(value) for value in vars(importlib.import_module(name)).values() if callable(value)
            )
            own = [value for value in values if inspect.isfunction(value) and value.__module__ == name]
            by_tag |= {
                e.tag: e for function in own if function.__name__ != "<lambda>" for e in read_equations(function)
            }
    return dict(sorted(by_tag.items(), key=lambda item: tag_key(item[0])))
