"""Models of a given shape with random weights: for measuring what a step costs without the trained weights.

Time and memory of a step depend on the shape of the model, not on what its weights have learnt.
"""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

# The sizes in the config.json of Qwen/Qwen2-0.5B-Instruct: 494,032,768 parameters.
QWEN2_05B = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
# The same family, small enough for a test on a CPU; every proportion that a formula for memory could get wrong differs.
SMALL = QWEN2_05B | {
    "vocab_size": 4096,
    "hidden_size": 192,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
SHAPES = {"qwen2-0.5b": QWEN2_05B, "small": SMALL}


def shape_config(shape: str) -> Qwen2Config:
    """The transformers configuration of a shape in `SHAPES`."""
    if shape not in SHAPES:
        raise ValueError(f"shape is {shape!r}; allowed are {', '.join(map(repr, SHAPES))}")
    return Qwen2Config(**SHAPES[shape], bos_token_id=None, eos_token_id=None, pad_token_id=None)


def random_policy(
    shape: str,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Qwen2ForCausalLM:
    """A freshly initialised model of this shape, in eval mode; made on the device itself, in its precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(seed)
            model = Qwen2ForCausalLM(shape_config(shape))
    finally:
        torch.set_default_dtype(before)
    return model.eval()
