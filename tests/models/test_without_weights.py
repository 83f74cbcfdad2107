"""Tests that a model's configuration and tokenizer, without its weights, are enough for the checks of a command."""

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.models.without_weights import ModelWithoutWeights, load_config_and_tokenizer
from grpo_lab.rollout.environments.tools import ToolEnvironment
from tests.support.tool_policy import ROWS, add, make_tool_policy


def test_configuration_and_tokenizer_are_enough_to_check_an_environment(tmp_path):
    model, tokenizer = make_tool_policy()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config, opened_tokenizer = load_config_and_tokenizer(str(tmp_path), "cpu")
    assert config.hidden_size == model.config.hidden_size and config.vocab_size == len(tokenizer)
    assert opened_tokenizer.chat_template == tokenizer.chat_template and opened_tokenizer.padding_side == "left"
    environment, stand_in = ToolEnvironment([add]), ModelWithoutWeights(config)
    environment.check(stand_in, opened_tokenizer, ROWS, 60)
    with pytest.raises(InputError, match="dataset row 0: prompt has "):
        environment.check(stand_in, opened_tokenizer, ROWS, config.max_position_embeddings)


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path):
    model, tokenizer = make_tool_policy()
    tokenizer.eos_token = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="whose tokenizer has no end token"):
        load_config_and_tokenizer(str(tmp_path), "cpu")
