"""The models that take the fast paths of sampling and of log-probabilities.

On the fast paths, a common prefix of several rows is computed once (packing.py), layers share a mask, and decoding has
its own cache (cache.py). These paths are right for Llama, Qwen2 and Qwen3 if every layer attends to all earlier tokens.
Any other model takes the plain way: transformers' `generate` samples, and the model's own forward pass over whole rows
gives the log-probabilities. Before a model is trained, `models/selfcheck.py` compares the log-probabilities that its
sampler records with those computed again, on the way that the model takes; the two ways are compared in the tests.
"""

from grpo_lab.rollout.model_config import length_dependent_rope

FAST_FAMILIES = ("llama", "qwen2", "qwen3")  # values of `model_type` in a configuration


def has_fast_path(model) -> bool:
    """Return True if the fast paths are right for a model."""
    config = model.config
    has_full_attention = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
    is_standard = config._attn_implementation in ("sdpa", "eager") and length_dependent_rope(config) is None
    return config.model_type in FAST_FAMILIES and has_full_attention and is_standard
