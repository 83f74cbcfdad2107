"""Tests of the environment of a run: what it is made of, and what excludes what."""

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.rollout.environments.factory import make_environment
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.environments.tools.tool_environment import TOOL_TIMEOUT
from grpo_lab.tasks import find_task
from tests.support.text_episodes import STOP_STRINGS, reply_by_length
from tests.support.tool_policy import add

CALCULATOR = find_task("sums-calculator")
TEXTS = TextEnvironment(reply_by_length, STOP_STRINGS)


class World:
    """An environment class that counts its instances."""

    instances = 0

    def __init__(self):
        World.instances += 1

    def reset(self, **row) -> None:
        """Begin an episode."""


def test_without_tools_and_without_a_task_that_replies_there_is_no_environment():
    assert make_environment() is None
    assert make_environment(find_task("sums"), tools=[]) is None


def test_the_environment_of_a_task_is_its_function_that_replies():
    expected = TextEnvironment(CALCULATOR.respond, CALCULATOR.stop_strings)
    assert make_environment(CALCULATOR) == expected
    assert make_environment(CALCULATOR, max_tool_calling_iterations=2).max_turns == 3


def test_tools_and_a_factory_make_a_tool_environment_with_the_limits():
    environment = make_environment(find_task("sums"), tools=[add], max_tool_calling_iterations=2, tool_timeout=0.5)
    assert isinstance(environment, ToolEnvironment) and environment.tools == [add]
    assert (environment.max_tool_calling_iterations, environment.tool_timeout) == (2, 0.5)
    unlimited = make_environment(tools=[add])
    assert (unlimited.max_tool_calling_iterations, unlimited.tool_timeout) == (None, TOOL_TIMEOUT)
    World.instances = 0
    assert make_environment(environment_factory=World).environment_class is World and World.instances == 1


def test_an_environment_object_is_taken_as_it_is_but_for_its_limits():
    environment = ToolEnvironment([add])
    assert make_environment(environment=environment) is environment
    assert make_environment(environment=environment, tool_timeout=0.5).tool_timeout == 0.5
    patient = ToolEnvironment([add], tool_timeout=60.0)
    assert make_environment(environment=patient, tool_timeout=TOOL_TIMEOUT).tool_timeout == TOOL_TIMEOUT
    assert make_environment(environment=patient, tool_timeout=GRPOConfig().tool_timeout_override) is patient
    assert make_environment(environment=environment, max_tool_calling_iterations=4).max_tool_calling_iterations == 4
    assert make_environment(environment=TEXTS) is TEXTS
    limited = make_environment(environment=TEXTS, max_tool_calling_iterations=4)
    assert limited == make_environment(environment=limited, max_tool_calling_iterations=4)
    assert limited == TextEnvironment(reply_by_length, STOP_STRINGS, max_turns=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"task": CALCULATOR, "tools": [add]},
            "tools is given for a task that has an environment of its own",
        ),
        (
            {"task": CALCULATOR, "environment_factory": World},
            "environment is given for a task that has an environment of its own; leave it out, or take another task",
        ),
        (
            {"task": CALCULATOR, "environment": TEXTS},
            "environment is given for a task that has an environment of its own; leave it out, or take another task",
        ),
        ({"environment": TEXTS, "tools": [add]}, "environment is given, too; expected either it or tools"),
        (
            {"environment": TEXTS, "environment_factory": World},
            "environment is given, too; expected either it or environment_factory",
        ),
        ({"tool_timeout": 0.5}, "tool_timeout is 0.5; leave it out: there are no tools"),
        ({"task": find_task("sums"), "tool_timeout": 0.5}, "tool_timeout is 0.5; leave it out: there are no tools"),
        ({"task": CALCULATOR, "tool_timeout": 0.5}, "tool_timeout is 0.5; leave it out: this environment has no time"),
        ({"max_tool_calling_iterations": 2}, "max_tool_calling_iterations is 2; leave it out: there are no tools"),
        (
            {"task": find_task("sums"), "max_tool_calling_iterations": 2},
            "max_tool_calling_iterations is 2; leave it out: there are no tools",
        ),
    ],
)
def test_a_second_environment_and_a_limit_without_one_are_refused(arguments, message):
    World.instances = 0
    with pytest.raises(InputError, match=message):
        make_environment(**arguments)
    assert World.instances == 0


def test_the_schemas_of_an_environment_are_those_of_its_tools():
    assert [schema["function"]["name"] for schema in make_environment(tools=[add]).schemas] == ["add"]
    assert make_environment(CALCULATOR).schemas is None
