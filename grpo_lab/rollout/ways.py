"""Which short ways are right for a model: each saves memory or time where it is, and would be wrong elsewhere.

Without any of them a model is run as transformers runs it: its layers make their masks from a plain one of tokens, each
row computes its own prompt, and the cache is the one that `generate` makes. That holds for every architecture which
transformers decodes rightly. A short way is taken only by the kinds that are named here or have it by their parts; and
`models/selfcheck.py` takes it from a model for which it turns out to be wrong.
"""

from dataclasses import dataclass

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from grpo_lab.rollout.forward import layers_of, takes

# All of their layers look at every token before, through transformers' attention interface, with nothing added to the
# scores. tests/models/test_architectures.py holds each of them against its own forward.
# No mixtures of experts: which rows an expert gets is a question to the host, and a captured step may ask none.
PLAIN_KINDS = {
    "apertus", "arcee", "bitnet", "cohere", "ernie4_5", "gemma", "glm", "glm4", "granite", "helium",
    "hunyuan_v1_dense", "llama", "mistral", "nanochat", "nemotron", "olmo", "olmo2", "phi", "phi3",
    "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2",
}  # fmt: skip
STEADY_ROPE = ("default", "linear", "llama3", "yarn")  # rotations that do not depend on how long the sequence is
WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "window_size", "local_attention")
FORBIDDEN = "rollout_forbids"  # an attribute of a model: short way -> why not, found by the self-check


@dataclass(frozen=True)
class Ways:
    """The short ways that are open to a model."""

    one_mask: bool  # the mask is made once, in numbers, and all layers keep the same (rollout/attention.py)
    shared_prompts: bool  # a prompt is computed once, and all its completions go on from there
    static_cache: bool  # a step in fixed memory (rollout/static.py)


def ways_of(model) -> Ways:
    """What the configuration allows, less what the self-check has found wrong."""
    forbidden = getattr(model, FORBIDDEN, {})
    return Ways(
        one_mask=why_not_one_mask(model) is None,
        shared_prompts=_remembers_tokens(model) and "shared_prompts" not in forbidden,
        static_cache=why_not_static(model) is None,
    )


def why_not_one_mask(model) -> str | None:
    """What keeps all layers from one mask: another kind of attention, or one that takes no numbers."""
    kind = model.config.model_type
    if kind not in PLAIN_KINDS:
        return f"its kind is {kind}, and fixed memory was not tried with that"
    layers = sorted(set(getattr(model.config, "layer_types", None) or ["full_attention"]))
    if layers != ["full_attention"]:
        return f"its layer_types is {', '.join(layers)}"
    if window := sliding_window(model.config):
        return f"its sliding_window is {window}"
    if (attention := model.config._attn_implementation) not in ("sdpa", "eager"):
        return f"its attention is computed by {attention}"
    return None


def why_not_static(model) -> str | None:
    """What keeps a model from decoding in fixed memory: a step that depends on the length, or is of another kind."""
    if (rope := adapting_rope(model.config)) is not None:
        return f"its rope_type is {rope['rope_type']}"
    forbidden = getattr(model, FORBIDDEN, {})
    alone = "its prompts cannot be shared" if "shared_prompts" in forbidden else None  # nobody would fill the cache
    return why_not_one_mask(model) or alone or forbidden.get("static_cache")


def sliding_window(model_config) -> int | None:
    """How many tokens back some layer looks, if that is not all; the configurations have many names for it."""
    text = model_config.get_text_config()
    names = () if getattr(text, "use_sliding_window", True) is False else WINDOWS
    found = [value for name in names if isinstance(value := getattr(text, name, None), int) and value > 0]
    return min(found, default=None)


def adapting_rope(model_config) -> dict | None:
    """The settings of a rotary embedding that depends on how long the sequence is, if there is one."""
    given = getattr(model_config.get_text_config(), "rope_parameters", None) or {}
    each = [settings for settings in given.values() if isinstance(settings, dict)] or [given]  # one for each layer type
    return next((settings for settings in each if settings.get("rope_type", "default") not in STEADY_ROPE), None)


def head_width(model_config) -> int:
    """Numbers in a query or key of one head, D_h; older configurations do not name it."""
    return getattr(model_config, "head_dim", None) or model_config.hidden_size // model_config.num_attention_heads


def context_length(model_config) -> int | None:
    """How many tokens prompt and completion may be together; None: the configuration names no limit.

    Where the rotary embedding adapts to the length, it is the length up to which it does not: keys that were computed
    before it changes stay in the cache as they are, and the sampler would be another policy than the one scored.
    """
    text = model_config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
    found = (value for name in names if isinstance(value := getattr(text, name, None), int))
    longest = next((value for value in found if value > 0), None)
    return (adapting_rope(text) or {}).get("original_max_position_embeddings") or longest


def _remembers_tokens(model) -> bool:
    """Whether all that its layers carry on are keys and values in a cache of transformers', and no state."""
    try:
        layers = DynamicCache(config=model.config).layers
    except (AttributeError, KeyError):  # layers of its own, for which transformers' cache has no place
        return False
    tokens = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    return tokens and takes(layers_of(model), "past_key_values")
