"""What sampling and log-probabilities read from the configuration of a model, which names it in several ways."""

FIXED_ROPE = ("default", "linear", "llama3", "yarn")  # kinds of rotary embeddings that do not depend on the length


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
