"""What `import grpo_lab` offers: every name is found, and nothing is imported before a name is used."""

import subprocess
import sys

import pytest

import grpo_lab


def test_every_offered_name_is_that_of_its_package():
    assert sorted(grpo_lab._PACKAGES) == sorted(grpo_lab.__all__)
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


def test_a_star_imports_the_offered_names_alone():
    names: dict = {}
    exec("from grpo_lab import *", names)
    assert names.keys() - {"__builtins__"} == set(grpo_lab.__all__)
