"""Contexts that set the mode of a model, and give it a neutral generation_config for sampling."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import GenerationConfig


@contextmanager
def evaluation_mode(model):
    """Inside this context, put a model into evaluation mode; afterwards restore the mode of each module.

    In evaluation mode there is no dropout, and layers with gradient checkpointing keep their keys and values. In
    training mode, transformers only warns that such layers keep no cache, and each new token would see only itself.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def training_mode(model, training: bool) -> Iterator[None]:
    """Inside this context, set the model to training mode or to evaluation mode; afterwards restore its mode.

    Afterwards all modules get the mode that the model itself had, whereas `evaluation_mode` restores that of each
    module.
    """
    was_training = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def checkpointed_layers(model) -> Iterator[None]:
    """Inside this context, let the layers of a model use gradient checkpointing; afterwards restore its setting."""
    was_checkpointing = model.is_gradient_checkpointing
    model.gradient_checkpointing_enable()
    try:
        yield
    finally:
        if not was_checkpointing:
            model.gradient_checkpointing_disable()


@contextmanager
def set_aside_generation_config(model):
    """Inside this context, give the model a neutral generation_config; afterwards restore the checkpoint's own.

    So `generate` adds no top_k, top_p or penalty of the checkpoint.
    """
    checkpoint_config, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = checkpoint_config
