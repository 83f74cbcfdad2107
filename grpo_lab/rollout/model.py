"""The model as a rollout uses it: its sizes and limits, whether it takes the fast paths, contexts that set its mode.

On the fast paths, a common prefix of several rows is computed once (forward/packing.py), layers share a mask, and
decoding has its own cache (decoding/cache.py). These paths are right for Llama, Qwen2 and Qwen3 if every layer attends
to all earlier tokens. Any other model takes the plain way: transformers' `generate` samples, and the model's own
forward pass over whole rows gives the log-probabilities. Before a model is trained, `models/selfcheck.py` compares the
log-probabilities that its sampler records with those computed again, on the way that the model takes; the two ways are
compared in the tests.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import GenerationConfig

FIXED_ROPE = ("default", "linear", "llama3", "yarn")  # kinds of rotary embeddings that do not depend on the length
FAST_FAMILIES = ("llama", "qwen2", "qwen3")  # values of `model_type` in a configuration


def head_dim(model_config) -> int:
    """Return D_h, the width of an attention head; computed if an older configuration does not name it."""
    return getattr(model_config, "head_dim", None) or model_config.hidden_size // model_config.num_attention_heads


def context_length(model_config) -> int | None:
    """Return the maximum number of tokens of prompt and completion together; None if there is no limit.

    If the rotary embedding depends on the length of the sequence, this is the length up to which it stays the same.
    Beyond it, the keys that are already in the cache would keep the old embedding, so that the sampler would be a
    different policy from the one that is trained.
    """
    text_config = model_config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
    limits = [getattr(text_config, name, None) for name in names]
    longest = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
    rope = length_dependent_rope(text_config) or {}
    return rope.get("original_max_position_embeddings") or longest


def length_dependent_rope(model_config) -> dict | None:
    """Return the settings of a rotary embedding that depends on the length of the sequence; None if there is none."""
    rope = getattr(model_config.get_text_config(), "rope_parameters", None) or {}
    by_layer_type = [settings for settings in rope.values() if isinstance(settings, dict)]
    every_rope = by_layer_type or [rope]
    return next((settings for settings in every_rope if settings.get("rope_type", "default") not in FIXED_ROPE), None)


def has_fast_path(model) -> bool:
    """Return True if the fast paths are right for a model."""
    config = model.config
    has_full_attention = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
    is_standard = config._attn_implementation in ("sdpa", "eager") and length_dependent_rope(config) is None
    return config.model_type in FAST_FAMILIES and has_full_attention and is_standard


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
