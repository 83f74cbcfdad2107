"""The models that take the fast paths, and what sampling and log-probabilities read from model configurations.

On the fast paths, a common prefix of several rows is computed once (packing.py), layers share a mask, and decoding has
its own cache (cache.py). These paths are right for Llama, Qwen2 and Qwen3 if every layer attends to all earlier tokens.
Any other model takes the plain way: transformers' `generate` samples, and the model's own forward pass over whole rows
gives the log-probabilities. Before a model is trained, `models/selfcheck.py` compares the log-probabilities that its
sampler records with those computed again, on the way that the model takes; the two ways are compared in the tests.
"""

FAST_FAMILIES = ("llama", "qwen2", "qwen3")  # values of `model_type` in a configuration
FIXED_ROPE = ("default", "linear", "llama3", "yarn")  # kinds of rotary embeddings that do not depend on the length


def has_fast_path(model) -> bool:
    """Return True if the fast paths are right for a model."""
    config = model.config
    has_full_attention = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
    is_standard = config._attn_implementation in ("sdpa", "eager") and _adapting_rope(config) is None
    return config.model_type in FAST_FAMILIES and has_full_attention and is_standard


def head_dim(model_config) -> int:
    """Return D_h, the width of an attention head; computed if an older configuration does not name it."""
    return getattr(model_config, "head_dim", None) or model_config.hidden_size // model_config.num_attention_heads


def context_length(model_config) -> int | None:
    """Return the maximum number of tokens of prompt and completion together; None if there is no limit.

    If the rotary embedding adapts to the length of the sequence, this is the length up to which it stays the same.
    Beyond it, the keys that are already in the cache would keep the old embedding, so that the sampler would be a
    different policy from the one that is trained.
    """
    text_config = model_config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
    limits = [getattr(text_config, name, None) for name in names]
    longest = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
    adapting_rope = _adapting_rope(text_config) or {}
    return adapting_rope.get("original_max_position_embeddings") or longest


def _adapting_rope(model_config) -> dict | None:
    """Return the settings of a rotary embedding that depends on the length of the sequence; None if there is none."""
    rope = getattr(model_config.get_text_config(), "rope_parameters", None) or {}
    by_layer_type = [settings for settings in rope.values() if isinstance(settings, dict)]
    every_rope = by_layer_type or [rope]
    return next((settings for settings in every_rope if settings.get("rope_type", "default") not in FIXED_ROPE), None)
