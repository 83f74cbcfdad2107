"""A reward is known again in another process, and one that would give other rewards is told from it."""

import functools
import linecache
import operator
import re
from dataclasses import dataclass

import pytest

from grpo_lab.rewards import accuracy_reward
from grpo_lab.rewards.made_with import of_function


def of_script(text):
    """The function `reward` of a script or a notebook's cell."""
    scope = {"__name__": "__main__"}
    exec(compile(text, "<cell 7>", "exec"), scope)
    linecache.cache["<cell 7>"] = (len(text), None, text.splitlines(keepends=True), "<cell 7>")
    return of_function(scope["reward"])


SCRIPT = """
resume, SIGN, calls = False, 1, []

def score(text):
    return score(text[1:]) + 1 if text else 0

def reward(completions, **kwargs):
    calls.append(1)
    return [SIGN * score(text) for text in completions]
"""


def test_a_script_may_be_edited_in_order_to_resume_but_not_the_reward_nor_what_it_names():
    before = of_script(SCRIPT)
    assert before["files"] and not before["unknown"]
    for same in (("resume, SIGN, calls = False", "resume, SIGN, calls = True"), ("[]", "[1]")):
        assert of_script(SCRIPT.replace(*same)) == before
    for other in (("1, []", "-1, []"), ("+ 1 if", "- 1 if"), ("[SIGN *", "[-SIGN *")):
        assert of_script(SCRIPT.replace(*other)) != before, other


def plain(completions, **kwargs):
    return [float(len(text)) for text in completions]


def wrapped(sign):
    @functools.wraps(plain)
    def reward(completions, **kwargs):
        return [sign * one for one in plain(completions)]

    return reward


def recursive(sign):
    def reward(text):
        return reward(text[1:]) + sign if text else 0

    return reward


@dataclass
class Instance:
    sign: int

    def __len__(self):
        return 0

    def __call__(self, completions, **kwargs):
        return [self.sign] * len(completions)


@dataclass(slots=True)
class Slotted(Instance):
    other: int = 0


@pytest.mark.parametrize(
    "made",
    [
        *(wrapped, recursive, Instance, lambda sign: Instance(sign).__call__),
        lambda sign: functools.lru_cache(wrapped(sign)),
        lambda sign: functools.partial(plain, words=[re.compile("a" * 300 + str(sign)), {"b": (sign, None)}, {1, 2}]),
        lambda sign: functools.partial(plain, text=f"an unknown number, {sign}"),
        lambda sign: functools.partial(plain, many=list(range(1000 + sign))),
    ],
)
def test_what_a_reward_was_made_with_is_compared(made):
    one, again, other = map(of_function, (made(1), made(1), made(-1)))
    assert one == again != other and not one["unknown"] and len(str(one)) < 2000


def test_what_has_no_source_or_is_our_own_is_known_by_its_name():
    for function, name in ((len, "builtins.len"), (accuracy_reward, "grpo_lab.rewards.rules.accuracy_reward")):
        assert of_function(function) == {"name": name, "bound": [], "unknown": [], "files": {}}


def test_what_cannot_be_compared_is_named_with_its_type():
    found = of_function(functools.partial(plain, client=object(), held=[lambda: None, {"a": object()}]))
    assert found["unknown"] == ["client (object)", "held (object)"]
    for function in (operator.itemgetter(1), Slotted(1), Slotted(1).__call__, "text".count):
        assert of_function(function)["unknown"] == ["its state (object)"]
    scope = {"__name__": "__main__"}
    exec("def typed(completions): return [1.0]", scope)  # into a console
    assert of_function(scope["typed"])["unknown"] == ["a function without source"]
    scope["typed"].fingerprint = "it pays 1"
    found = of_function(scope["typed"])
    assert found["bound"] == ["fingerprint = 'it pays 1'"] and not found["unknown"]
