"""A model without its weights: its configuration and tokenizer, with which a command checks a run before loading it."""

from typing import Any, NamedTuple

from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerBase

from grpo_lab.models.folders import base_model_folder
from grpo_lab.models.loading import load_component, load_tokenizer


class ModelWithoutWeights(NamedTuple):
    """A stand-in for a model in checks that read nothing but its configuration, such as `Environment.check`."""

    config: Any


def load_config_and_tokenizer(
    name: str, device_type: str | None = None
) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """Load the configuration and the tokenizer of a model.

    Args:
        name: Name or folder of the model, as `load_policy` takes it.
        device_type: "cpu" or "cuda", for which "auto" chooses a model; None takes the device of this machine.
    """
    folder = base_model_folder(name, device_type)
    return load_component(AutoConfig, folder), load_tokenizer(folder)
