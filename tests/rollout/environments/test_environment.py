"""Tests of the interface of environments: its defaults, and objects of the user's own that do not inherit from it."""

import pytest
import torch

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.environments.environment import Environment, WrappedEnvironment, as_environment, sample_rows
from grpo_lab.rollout.environments.factory import make_environment
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.trainer import Run, collect, train
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy, without_times
from tests.support.text_episodes import STOPS, answers
from tests.support.tool_policy import Adder, add

TEXTS = TextEnvironment(answers, STOPS)


class Uninherited:
    """An environment of the user's own: no base class, no attributes, and `sample` without `record_turns`."""

    def sample(self, model, tokenizer, rows, num_generations, max_completion_length, **sampling):
        assert "record_turns" not in sampling
        return TEXTS.sample(model, tokenizer, rows, num_generations, max_completion_length, **sampling)

    def check(self, model, tokenizer, rows, max_completion_length, name="dataset"):
        TEXTS.check(model, tokenizer, rows, max_completion_length, name)

    functions_and_settings = TEXTS.functions_and_settings


class Recording(Uninherited):
    """An environment of the user's own that says it has instances, and so gets `record_turns`."""

    has_instances = has_reward = True
    schemas = ({"function": {"name": "f"}},)

    def sample(self, *args, record_turns=False, **sampling):
        self.record_turns = record_turns
        return TEXTS.sample(*args, **sampling)


def attributes(environment):
    return [getattr(environment, name) for name in ("has_instances", "has_reward", "has_state", "schemas")]


def test_attributes_of_environments_say_what_they_have():
    assert attributes(TEXTS) == attributes(Environment()) == [False, False, False, None]
    tools, adder = ToolEnvironment([add]), ToolEnvironment(environment_factory=Adder)
    assert attributes(tools)[:3] == [False, False, False] and attributes(adder)[:3] == [True, True, False]
    assert attributes(as_environment(Uninherited())) == [False, False, False, None]
    assert attributes(as_environment(Recording())) == [True, True, False, Recording.schemas]


def test_as_environment_wraps_once():
    wrapped = make_environment(environment=Uninherited())
    assert isinstance(wrapped, WrappedEnvironment) and as_environment(wrapped) is wrapped
    assert as_environment(TEXTS) is TEXTS and as_environment(None) is None


def test_a_limit_of_turns_is_set_or_refused_and_never_ignored():
    limit = {"max_tool_calling_iterations": 2}
    assert make_environment(environment=TEXTS, **limit).max_turns == 3
    tools = ToolEnvironment([add], max_tool_calling_iterations=5)
    assert make_environment(environment=tools, **limit).max_tool_calling_iterations == 2
    assert tools.max_tool_calling_iterations == 5
    with pytest.raises(InputError, match="^max_tool_calling_iterations is 2; leave it out: this"):
        make_environment(environment=Uninherited(), **limit)


def test_record_turns_reaches_a_wrapped_object_with_instances():
    model, tokenizer = make_policy()
    recording = Recording()
    for record_turns in (True, False):
        sample_rows(model, tokenizer, ROWS[:1], 2, 8, recording, record_turns=record_turns)
        assert recording.record_turns is record_turns
    sample_rows(model, tokenizer, ROWS[:1], 2, 8, Uninherited(), record_turns=True)


def test_environments_that_do_not_inherit_train_the_same_to_the_bit():
    histories, tokens = [], []
    for environment in (TEXTS, Uninherited()):
        model, tokenizer = make_policy()
        config = make_config(max_completion_length=16, max_steps=2)
        histories.append(without_times(train(model, tokenizer, ROWS, letter_reward, config, environment=environment)))
        with Run(model, tokenizer, ROWS, letter_reward, config, environment=environment) as run:
            torch.manual_seed(0)
            batch, _ = collect(model, tokenizer, ROWS, letter_reward, config, environment=run.environment)
        tokens.append(batch.rollout.completion_ids)
    assert histories[0] == histories[1] and torch.equal(*tokens)


def test_advantages_from_states_refuse_an_environment_without_them():
    config = make_config(advantage="state", max_completion_length=16)
    with pytest.raises(InputError, match="whose class has `def get_state"):
        train(*make_policy(), ROWS, letter_reward, config, environment=Uninherited())
