"""What `import grpo_lab` offers: every name is found, and nothing is imported before a name is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_lab


def imports_for_type_checkers() -> dict[str, str]:
    """Return the package by the name that grpo_lab/__init__.py imports from it under `if TYPE_CHECKING`."""
    source = Path(grpo_lab.__file__).read_text(encoding="utf-8")
    conditions = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for node in conditions[0].body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_every_offered_name_is_that_of_its_package():
    assert sorted(grpo_lab._PACKAGES) == sorted(grpo_lab.__all__)
    assert imports_for_type_checkers() == grpo_lab._PACKAGES
    for name, package in grpo_lab._PACKAGES.items():
        assert getattr(grpo_lab, name) is getattr(sys.modules[package], name)
    unknown_name = "nothing"
    with pytest.raises(AttributeError, match="module 'grpo_lab' has no attribute 'nothing'"):
        getattr(grpo_lab, unknown_name)


def test_the_import_is_light_and_dir_lists_the_names_before_their_first_use():
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import grpo_lab\n"
        "assert dir(grpo_lab) == sorted([*grpo_lab.__all__, '__version__'])\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert new <= {'grpo_lab', *sys.stdlib_module_names}, new\n"
        "import grpo_lab.base\n"
        "assert 'base' in dir(grpo_lab)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_star_import_of_the_package_gives_only_the_offered_names():
    names: dict = {}
    exec("from grpo_lab import *", names)
    assert names.keys() - {"__builtins__"} == set(grpo_lab.__all__)
