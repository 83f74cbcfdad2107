"""An old name gives what the new name gives, and its warning points to the line that uses the old name."""

import sys
import warnings
from dataclasses import dataclass
from types import ModuleType

import pytest

from grpo_lab import memory
from grpo_lab.base.random_state import SEED_STRIDE
from grpo_lab.base.renamed import renamed_attribute, renamed_in_module, warn_renamed
from grpo_lab.course import exercises

MODULE = "module_of_renamed_things"


class Square:
    def __init__(self, side):
        self.side = side

    def area(self, scale):
        return scale * self.side**2

    width = renamed_attribute("square.width", "side")
    surface = renamed_attribute("square.surface", "area")


def call_under_old_name():
    warn_renamed("old_call", "new_call")


@dataclass
class Divided:
    by: str

    def __post_init__(self):
        warn_renamed(self.by, "completions", stacklevel=3)  # 2 is `__init__`, which the dataclass makes


@pytest.fixture
def module(monkeypatch):
    module = ModuleType(MODULE)
    new_names = {"MAXIMUM": "LIMIT", "TOP": "LIMIT", "SEEDS": "grpo_lab.base.random_state.SEED_STRIDE"}
    module.LIMIT, module.__getattr__ = 7, renamed_in_module(MODULE, new_names)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def test_an_old_name_of_a_module_gives_the_value_of_the_new_one(module, monkeypatch):
    for old in ("MAXIMUM", "TOP"):
        with pytest.warns(DeprecationWarning, match=f"^{old} is called LIMIT now$"):
            assert getattr(module, old) == 7
    monkeypatch.setattr(module, "LIMIT", 8)
    with pytest.warns(DeprecationWarning):
        assert module.MAXIMUM == 8
    with pytest.warns(DeprecationWarning, match=r"^SEEDS is called grpo_lab\.base\.random_state\.SEED_STRIDE now$"):
        assert module.SEEDS == SEED_STRIDE
    with pytest.raises(AttributeError, match=f"^module '{MODULE}' has no attribute 'MINIMUM'$"):
        module.MINIMUM  # noqa: B018


def test_an_old_attribute_or_method_gives_the_new_one():
    with pytest.warns(DeprecationWarning, match=r"^square\.width is called side now$"):
        assert Square(3).width == 3
    with pytest.warns(DeprecationWarning, match=r"^square\.surface is called area now$"):
        assert Square(3).surface(scale=2) == 18
    assert Square.width.__doc__ == "Deprecated: the name of `side` before 1.0.0."


def test_a_warning_points_to_the_line_that_uses_the_old_name(module):
    uses = [
        lambda: module.MAXIMUM,
        lambda: Square(3).width,
        lambda: call_under_old_name(),
        lambda: Divided("rows"),
        lambda: memory.plan,
        lambda: exercises.exercise,
    ]
    for use in uses:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use()
        (warning,) = caught
        assert (warning.category, warning.filename) == (DeprecationWarning, __file__)
        assert warning.lineno == use.__code__.co_firstlineno
