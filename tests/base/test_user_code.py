"""Tests of the user's own files, each of which is executed once and replaces no module, and of the Python of cells."""

import importlib
import json
import subprocess
import sys
from types import ModuleType

import pytest

from grpo_lab.advantages import ADVANTAGES
from grpo_lab.base.checks import InputError
from grpo_lab.base.user_code import functions_of_cell, import_user_object, parse_cell, python_of_cell, qualified_name
from grpo_lab.config.user_formulas import register_user_formula
from grpo_lab.rewards.named import find_rewards
from grpo_lab.rollout.environments.factory import load_environment_class, load_tools

MINE = '''
from pathlib import Path

with Path("executed.txt").open("a", encoding="utf-8") as file:
    file.write("once ")

class World:
    def reset(self, **row): pass

def add(a: int) -> int:
    """Add."""
    return a

def score(completions, environments, **kwargs):
    return [float(isinstance(environment, World)) for environment in environments]

def centred(rewards):
    return rewards - rewards.mean()
'''


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """A current folder; modules that the test imports are removed after it."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(vars(module).get("__file__") if isinstance(module, ModuleType) else "").startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


def loaded(name: str):
    return import_user_object("reward_funcs", name, "my_rewards:brief")


def test_a_file_that_several_options_name_is_executed_once(workdir):
    (workdir / "mine.py").write_text(MINE, encoding="utf-8")
    (score,) = find_rewards(["mine.py:score"])
    load_tools(["mine.py:add"])
    World = load_environment_class("mine.py:World")
    register_user_formula("advantage", "mine.py:centred")
    del ADVANTAGES["mine.py:centred"]
    assert (workdir / "executed.txt").read_text(encoding="utf-8") == "once "
    assert score(["a"], [World()]) == [1.0], "the reward knows the environment's class"
    names = ["mine:score", f"{workdir}/mine.py:score", f"../{workdir.name}/mine.py:score"]
    if sys.platform != "win32":  # where a link needs an administrator
        (workdir / "link.py").symlink_to(workdir / "mine.py")
        names.append("link.py:score")
    assert all(loaded(name) is score for name in names)
    assert (workdir / "executed.txt").read_text(encoding="utf-8") == "once "


def test_a_file_that_another_file_of_the_user_imports_is_the_same_module(workdir):
    (workdir / "mine.py").write_text(MINE, encoding="utf-8")
    (workdir / "task.py").write_text("from mine import World\nimport mine", encoding="utf-8")
    assert loaded("task.py:World") is loaded("mine.py:World") is sys.modules["mine"].World
    assert (workdir / "executed.txt").read_text(encoding="utf-8") == "once "


def test_a_file_that_is_called_like_a_module_of_python_does_not_replace_it(workdir, monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)  # not imported yet
    for name in ("json", "colorsys"):
        (workdir / "sub").mkdir(exist_ok=True)
        (workdir / "sub" / f"{name}.py").write_text("def f(completions): return [2.0]", encoding="utf-8")
        function = loaded(f"sub/{name}.py:f")
        assert function([""]) == [2.0] and loaded(f"sub/{name}.py:f") is function
        assert qualified_name(function) == f"{name}.f", "the name that a run saves is that of the file"
    assert importlib.import_module("json") is json
    assert hasattr(importlib.import_module("colorsys"), "rgb_to_hsv")


def test_files_of_one_name_in_two_folders_stay_two_modules(workdir):
    for folder in ("a", "b", "c"):
        (workdir / folder).mkdir()
        (workdir / folder / "twin.py").write_text(f"def name(): return {folder!r}", encoding="utf-8")
    functions = [loaded(f"{folder}/twin.py:name") for folder in "abc"]
    assert [function() for function in functions] == ["a", "b", "c"]
    assert [qualified_name(function) for function in functions] == ["twin.name"] * 3
    for function in functions:
        assert sys.modules[function.__module__].name is function, "inspect and pickle read it by its module"


def test_a_file_that_fails_leaves_no_module_and_is_executed_anew(workdir):
    search_path = list(sys.path)
    (workdir / "halves.py").write_text("1 / 0", encoding="utf-8")
    with pytest.raises(InputError, match="'halves.py:f', but it cannot be imported from .*: ZeroDivisionError"):
        loaded("halves.py:f")
    assert "halves" not in sys.modules and sys.path == search_path
    (workdir / "halves.py").write_text("def f(): return 0.5  # mended", encoding="utf-8")
    assert loaded("halves.py:f")() == 0.5


def test_files_only_refuses_a_module_and_names_the_alternatives(workdir):
    with pytest.raises(
        InputError, match="^tools has 'mine:add'; expected FILE:name, such as my_tools.py:search; or x$"
    ):
        import_user_object("tools", "mine:add", "my_tools:search", files_only=True, alternatives="; or x")


TEXT = 'a = """\n%%time\n%x\n!y\nz?\n\u2028"""\nb = 5 \\\n%3'


@pytest.mark.parametrize(
    ("source", "python"),
    [
        ("", ""),
        ("a = 1\n", "a = 1\n"),
        (TEXT, TEXT),
        (
            "%matplotlib inline\nif a:\n    !ls\n    ?print\nprint??\na.b?",
            "pass\nif a:\n    pass\n    pass\npass\npass",
        ),
        ("\n%%time\n%%capture output\na = 1", "\n\n\na = 1"),
        ("%%prun\n%pwd\na = 1", "\npass\na = 1"),
        ("a = 1\n%%time", "a = 1\npass"),
        ("def f(:", "def f(:"),
        ("x = !ls\nt, a[0] = %timeit -o f()", "x = None\nt, a[0] = None"),
        ("a[0]?\nb.c[i].d??\n*int*?", "pass\npass\npass"),
        ("a = 1\n!dir C:\\", "a = 1\npass"),
        ("!pip install \\\n    torch\na = 1", "pass\n\na = 1"),
        ("!echo it's (\n" + TEXT, "pass\n" + TEXT),
        ("!ls\na = (5\n%3)\nb = 'c' != \"(\"  # '''(\n%pwd", "pass\na = (5\n%3)\nb = 'c' != \"(\"  # '''(\npass"),
        ("!ls\nd['a=%s'] = f(b=1)", "pass\nd['a=%s'] = f(b=1)"),
        ("%%timeit\na = 1", None),
        ("%%timer\na = 1", None),
        ("\n%%bash\nls", None),
        ("%%time\n%%bash\nls", None),
    ],
)
def test_python_of_a_cell(source, python):
    assert python_of_cell(source) == python


@pytest.mark.parametrize("source", ["def f(:", "def f(): 0\0", "(" * 10_000, "-" * 100_000 + "1", "%%bash\ndef f(): 0"])
def test_a_cell_that_cannot_be_parsed_has_no_functions(source):
    assert parse_cell(source) is None
    assert functions_of_cell(source) == []


def test_functions_of_a_cell_are_those_at_its_top_level():
    source = "%%time\ndef f():\n    def g(): ...\nasync def h(): ...\nclass K:\n    def k(self): ..."
    assert [function.name for function in functions_of_cell(source)] == ["f", "h"]


def test_a_cell_with_the_output_of_a_command_has_functions():
    assert [function.name for function in functions_of_cell("x = !ls\ndef f(): return 1")] == ["f"]


def test_cell_code_is_imported_without_torch():
    code = "import sys, grpo_lab.base.user_code; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
