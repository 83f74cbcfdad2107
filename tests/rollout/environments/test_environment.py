"""Tests of the base class of environments: its defaults, environments of the user's own, and what is refused."""

import time
from inspect import unwrap

import pytest
import torch

from grpo_lab.base.checks import InputError
from grpo_lab.config.settings import SamplingParams
from grpo_lab.evaluate import evaluate
from grpo_lab.rollout.environments import tool_episode
from grpo_lab.rollout.environments.environment import Environment, sample_rollout
from grpo_lab.rollout.environments.factory import make_environment
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.trainer import Run, collect, train
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy, without_times
from tests.support.text_episodes import STOP_STRINGS, reply_by_length
from tests.support.tool_policy import (
    END,
    Adder,
    add,
    call,
    length_reward,
    make_tool_policy,
    sample_scripts,
    tool_config,
)
from tests.support.tool_policy import ROWS as TOOL_ROWS

TEXTS = TextEnvironment(reply_by_length, STOP_STRINGS)


class OwnEnvironment(Environment):
    """An environment of the user's own: no attributes, and `sample` without `record_turns`."""

    def sample(self, model, tokenizer, rows, sampling_params):
        return TEXTS.sample(model, tokenizer, rows, sampling_params)

    def check(self, model, tokenizer, rows, max_completion_length, name="dataset"):
        TEXTS.check(model, tokenizer, rows, max_completion_length, name)

    functions_and_settings = TEXTS.functions_and_settings


class Recording(OwnEnvironment):
    """An environment of the user's own that says it has instances, and so gets `record_turns`."""

    has_instances = has_reward = True
    schemas = ({"function": {"name": "f"}},)

    def sample(self, model, tokenizer, rows, sampling_params, *, record_turns=False):
        self.record_turns = record_turns
        return TEXTS.sample(model, tokenizer, rows, sampling_params)


class Uninherited:
    """It has what an `Environment` has, but does not inherit from it."""

    sample, check = OwnEnvironment.sample, OwnEnvironment.check
    functions_and_settings = TEXTS.functions_and_settings


def attributes(environment):
    return [getattr(environment, name) for name in ("has_instances", "has_reward", "has_state", "schemas")]


def test_attributes_of_environments_say_what_they_have():
    assert attributes(TEXTS) == attributes(Environment()) == [False, False, False, None]
    tools, adder = ToolEnvironment([add]), ToolEnvironment(environment_factory=Adder)
    assert attributes(tools)[:3] == [False, False, False] and attributes(adder)[:3] == [True, True, False]
    assert attributes(OwnEnvironment()) == [False, False, False, None]
    assert attributes(Recording()) == [True, True, False, Recording.schemas]


def test_an_environment_object_is_used_as_it_is():
    own = OwnEnvironment()
    assert make_environment(environment=own) is own and make_environment(environment=TEXTS) is TEXTS
    with Run(*make_policy(), ROWS, letter_reward, make_config(), environment=own) as run:
        assert run.inputs.environment is own


# `unwrap` is without the type check at run time, which would raise first.
ENTRANCES = {
    "train": lambda wrong: unwrap(train)(*make_policy(), ROWS, letter_reward, make_config(), environment=wrong),
    "Run": lambda wrong: Run(*make_policy(), ROWS, letter_reward, make_config(), environment=wrong),
    "collect": lambda wrong: unwrap(collect)(*make_policy(), ROWS, letter_reward, make_config(), environment=wrong),
    "evaluate": lambda wrong: evaluate(*make_policy(), ROWS, reward_funcs=letter_reward, environment=wrong),
    "make_environment": lambda wrong: make_environment(environment=wrong),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("wrong", [Uninherited(), OwnEnvironment, Adder()], ids=["object", "class", "with reset"])
def test_an_object_that_is_no_environment_is_refused_with_a_remedy(wrong, entrance):
    message = (
        "^environment is .*; expected an object whose class inherits from "
        r"grpo_lab\.rollout\.environments\.environment\.Environment"
    )
    if isinstance(wrong, Adder):
        message += "; a class with `reset` and tools, as for TRL, is an environment_factory$"
    else:
        message += "$"
    with pytest.raises(InputError, match=message):
        ENTRANCES[entrance](wrong)


def test_a_limit_of_turns_is_set_or_refused_and_never_ignored():
    limit = {"max_tool_calling_iterations": 2}
    assert make_environment(environment=TEXTS, **limit).max_turns == 3
    tools = ToolEnvironment([add], max_tool_calling_iterations=5)
    assert make_environment(environment=tools, **limit).max_tool_calling_iterations == 2
    assert tools.max_tool_calling_iterations == 5
    with pytest.raises(InputError, match="^max_tool_calling_iterations is 2; leave it out: this"):
        make_environment(environment=OwnEnvironment(), **limit)


def test_a_time_limit_of_calls_is_set_or_refused_and_never_ignored():
    tools = ToolEnvironment([add], tool_timeout=5.0)
    assert make_environment(environment=tools, tool_timeout=0.5).tool_timeout == 0.5
    assert tools.tool_timeout == 5.0, "the user's object stays as it was"
    assert make_environment(environment=tools) is tools, "the default leaves the limit to the environment"
    for environment in (TEXTS, OwnEnvironment()):
        with pytest.raises(InputError, match="^tool_timeout is 0.5; leave it out: this environment has no time limit"):
            make_environment(environment=environment, tool_timeout=0.5)


def test_the_time_limit_of_the_settings_reaches_the_calls_of_an_environment_object(monkeypatch):
    """A call that takes longer than the limit of the settings, but not than that of the object, fails."""

    def slow(a: int, b: int) -> int:
        """Add slowly.

        Args:
            a: the first
            b: the second
        """
        time.sleep(1)
        return a + b

    slow.__name__ = "add"
    monkeypatch.setattr(tool_episode, "POLL_SECONDS", 0.05)
    model, tokenizer = make_tool_policy()
    turns = [call("add", a=1, b=2) + END, "3" + END]
    sample_scripts(monkeypatch, tokenizer, [turns] * 2)
    config = tool_config(num_generations=2, generation_batch_size=2, max_steps=1, tool_timeout=0.1)
    (metrics,) = train(model, tokenizer, TOOL_ROWS[:1], length_reward, config, environment=ToolEnvironment([slow]))
    assert (metrics["tools/call_frequency"], metrics["tools/failure_frequency"]) == (1, 1)


def test_record_turns_reaches_only_an_environment_with_instances():
    model, tokenizer = make_policy()
    recording = Recording()
    for record_turns in (True, False):
        sample_rollout(model, tokenizer, ROWS[:1], SamplingParams(2, 8), recording, record_turns=record_turns)
        assert recording.record_turns is record_turns
    sample_rollout(model, tokenizer, ROWS[:1], SamplingParams(2, 8), OwnEnvironment(), record_turns=True)


def test_an_environment_of_ones_own_trains_the_same_to_the_bit():
    histories, tokens = [], []
    for environment in (TEXTS, OwnEnvironment()):
        model, tokenizer = make_policy()
        config = make_config(max_completion_length=16, max_steps=2)
        histories.append(without_times(train(model, tokenizer, ROWS, letter_reward, config, environment=environment)))
        with Run(model, tokenizer, ROWS, letter_reward, config, environment=environment) as run:
            torch.manual_seed(0)
            batch, _ = collect(model, tokenizer, ROWS, letter_reward, config, environment=run.inputs.environment)
        tokens.append(batch.rollout.completion_ids)
    assert histories[0] == histories[1] and torch.equal(*tokens)


def test_advantages_from_states_refuse_an_environment_without_them():
    config = make_config(advantage="state", max_completion_length=16)
    with pytest.raises(InputError, match="whose class has `def get_state"):
        train(*make_policy(), ROWS, letter_reward, config, environment=OwnEnvironment())
