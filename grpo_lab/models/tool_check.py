"""The check that a model's chat template works with tools, made before the weights are loaded."""

from typing import Any

from grpo_lab.models.folders import usable_folder
from grpo_lab.models.loading import load_tokenizer
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.tasks import Rows


def check_tool_environment(environment: Any, model: str, rows: Rows, name: str = "dataset") -> None:
    """Raise InputError if the chat template of the model or the rows do not work with an environment with tools.

    Only the tokenizer is loaded, so that a command can check before it loads the weights.

    Args:
        environment: The environment; only a `ToolEnvironment` is checked.
        model: Name or folder of the model.
        rows: The rows of the data.
        name: The argument that the rows come from, for the error message.
    """
    if isinstance(environment, ToolEnvironment):
        environment.check_rows(load_tokenizer(usable_folder(model)[0]), rows, name)
