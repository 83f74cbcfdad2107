"""Which models take the fast paths, and what sampling and log-probabilities need of their configurations.

Fast: what rows begin with in common is computed once (packing.py), layers share a mask, and tokens are decoded with a
cache of ours (decoder.py). That is right for Llama, Qwen2 and Qwen3 where every layer attends to every token before.
Any other model goes the plain way: transformers' `generate` samples, and the model's own forward pass over whole rows
gives the log-probabilities. Before a model is trained, `models/selfcheck.py` holds the two against each other.
"""

FAST_FAMILIES = ("llama", "qwen2", "qwen3")  # as `model_type` in a configuration
FIXED_ROPE = ("default", "linear", "llama3", "yarn")  # rotary embeddings that do not depend on the sequence length


def is_fast(model) -> bool:
    """True if the fast paths are right for a model."""
    config = model.config
    every_token = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
    usual = config._attn_implementation in ("sdpa", "eager") and _adapting_rope(config) is None
    return config.model_type in FAST_FAMILIES and every_token and usual


def head_dim(model_config) -> int:
    """Numbers in a query or key of one head, D_h; older configurations do not name it."""
    return getattr(model_config, "head_dim", None) or model_config.hidden_size // model_config.num_attention_heads


def context_length(model_config) -> int | None:
    """How many tokens prompt and completion may have together; None if the configuration names no limit.

    Where the rotary embedding adapts to the length, it is the length up to which it does not: keys that were computed
    before it changes stay in the cache as they are, and the sampler would be another policy than the one trained.
    """
    text_config = model_config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
    limits = (limit for name in names if isinstance(limit := getattr(text_config, name, None), int))
    longest = next((limit for limit in limits if limit > 0), None)
    return (_adapting_rope(text_config) or {}).get("original_max_position_embeddings") or longest


def _adapting_rope(model_config) -> dict | None:
    """The settings of a rotary embedding that depends on the length of the sequence, if there is one."""
    rope = getattr(model_config.get_text_config(), "rope_parameters", None) or {}
    by_layer_type = [settings for settings in rope.values() if isinstance(settings, dict)]
    every_rope = by_layer_type or [rope]
    return next((settings for settings in every_rope if settings.get("rope_type", "default") not in FIXED_ROPE), None)
