"""An old name gives what the new name gives, and its warning points to the line that uses the old name."""

import sys
import warnings
from dataclasses import dataclass
from types import ModuleType

import pytest

from grpo_lab import memory
from grpo_lab.base.random_state import SEED_STRIDE
from grpo_lab.base.renamed import (
    renamed_argument,
    renamed_attribute,
    renamed_call,
    renamed_in_module,
    renamed_value,
    warn_renamed,
)
from grpo_lab.config import GRPOConfig
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
        # 2 is `__init__`, which the dataclass makes.
        self.by = renamed_value("by", self.by, {"rows": "completions"}, stacklevel=3)


@renamed_argument("size", "side")
def rectangle(side, *, height=1):
    """Return the area of a rectangle."""
    return side * height


def texts_as_numbers(arguments):
    numbers = {name: int(value) for name, value in arguments.items() if isinstance(value, str)}
    return numbers or None


@renamed_call("power(text)", "power(number)", texts_as_numbers)
def power(base, exponent=2):
    return base**exponent


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


def test_an_old_argument_is_passed_under_its_new_name():
    with pytest.warns(DeprecationWarning, match="^the argument size is called side now$"):
        assert rectangle(size=3, height=2) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rectangle(3) == rectangle(3, size=None) == 3
    assert (rectangle.__name__, rectangle.__doc__) == ("rectangle", "Return the area of a rectangle.")
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(TypeError, match=r"^rectangle\(\) got multiple values for argument 'side'$"),
    ):
        rectangle(3, size=3)


def test_a_call_in_an_old_form_becomes_one_in_the_new_form():
    for call, result in ((lambda: power("3"), 9), (lambda: power("3", 3), 27), (lambda: power(2, exponent="3"), 8)):
        with pytest.warns(DeprecationWarning, match=r"^power\(text\) is called power\(number\) now$"):
            assert call() == result
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert power(3) == 9
    with pytest.raises(TypeError, match=r"^power\(\) missing 1 required positional argument: 'base'$"):
        power()


def test_an_old_value_gives_the_new_one():
    with pytest.warns(DeprecationWarning, match="^by='rows' is called 'completions' now$"):
        assert Divided("rows").by == "completions"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Divided("tokens").by == "tokens"


def test_a_warning_points_to_the_line_that_uses_the_old_name(module):
    uses = [
        lambda: module.MAXIMUM,
        lambda: Square(3).width,
        lambda: call_under_old_name(),
        lambda: Divided("rows"),
        lambda: rectangle(size=3),
        lambda: power("3"),
        lambda: GRPOConfig(command={"model": "tiny"}),
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
