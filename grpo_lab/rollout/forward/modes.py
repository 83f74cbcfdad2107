"""The state that a model has to be in for sampling, for a while: evaluation mode, and a neutral generation_config."""

from contextlib import contextmanager

from transformers import GenerationConfig


@contextmanager
def evaluating(model):
    """Evaluation mode for a while, then every module in the mode in which it was: each may have its own.

    No dropout; and checkpointed layers keep their keys and values: in training mode transformers takes their cache as
    None, with a warning alone, and each new token would see itself and nothing before.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def set_aside_generation_config(model):
    """Set the checkpoint's generation_config aside for a while.

    So `generate` adds no top_k, top_p or penalty of its own.
    """
    checkpoint_config, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = checkpoint_config
