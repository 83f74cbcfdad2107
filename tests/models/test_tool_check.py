"""Only an environment with tools is checked, and only the tokenizer of the model is read for it."""

import pytest
from grpo_lab.models.tool_check import check_tool_environment

from grpo_lab.models import tool_check
from grpo_lab.rollout.environments.tools import ToolEnvironment


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def test_rows_and_tokenizer_go_to_the_check_of_the_environment(monkeypatch):
    calls = []
    monkeypatch.setattr(tool_check, "usable_folder", lambda model: (f"folder of {model}", "reason"))
    monkeypatch.setattr(tool_check, "load_tokenizer", lambda folder: f"tokenizer in {folder}")
    monkeypatch.setattr(ToolEnvironment, "check_rows", lambda _, *arguments: calls.append(arguments))
    rows = [{"prompt": "1+1"}]
    check_tool_environment(ToolEnvironment(tools=[add]), "tiny", rows)
    check_tool_environment(ToolEnvironment(tools=[add]), "tiny", rows, "task")
    assert calls == [("tokenizer in folder of tiny", rows, name) for name in ("dataset", "task")]


@pytest.mark.parametrize("environment", [None, object()])
def test_without_tools_no_model_is_looked_up(environment, monkeypatch):
    monkeypatch.setattr(tool_check, "usable_folder", lambda model: pytest.fail("a model was looked up"))
    check_tool_environment(environment, "no such model", [])
