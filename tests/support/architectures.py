"""Architectures of every kind, as transformers makes them from a configuration, each so small that it runs at once.

Windows are 6 tokens and chunks 4, so that a few tokens reach beyond them; scales and soft caps are far from 1.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from tests.support.worlds import make_tokenizer

V, WINDOW = 24, 6
ENDS = {"bos_token_id": None, "eos_token_id": 17, "pad_token_id": 15}
# The names of sizes: those of most, of GPT-2's family, and of models whose states are matrices.
MOST = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
} | ENDS
GROUPED = MOST | {"num_key_value_heads": 2}
WIDE = GROUPED | {"head_dim": 8}
GPT = {"vocab_size": V, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} | ENDS
STATES = {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2} | ENDS
MAMBA = STATES | {"state_size": 4, "time_step_rank": 4}

ONE_LOCAL = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
ALL_LOCAL = {"sliding_window": WINDOW}
ALL_FAR = {"sliding_window": None}
CAPS = {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1}
ROUTED |= {"n_group": 1, "topk_group": 1, "n_shared_experts": 1}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
SHARED_EXPERT = {"shared_expert_intermediate_size": 24}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}


def rope(kind: str, **more) -> dict:
    original = {} if kind == "dynamic" else {"original_max_position_embeddings": 16}
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0} | original | more}


# name in the table: what the settings make of a model_type. The first word is the model_type, unless one is given.
ARCHITECTURES = {
    "qwen2": GROUPED,
    "qwen2 (windows)": GROUPED | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen2 (yarn)": GROUPED | rope("yarn"),
    "qwen2 (dynamic rope)": GROUPED | rope("dynamic"),
    "qwen2_moe": GROUPED | EXPERTS | SHARED_EXPERT,
    "qwen3": WIDE,
    "qwen3_moe": WIDE | EXPERTS,
    "qwen3_next": WIDE | EXPERTS | SHARED_EXPERT | LINEAR | {"layer_types": ["linear_attention", "full_attention"]},
    "llama": GROUPED,
    "llama (llama3 rope)": GROUPED | rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0),
    "llama4_text": WIDE
    | {"intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": WINDOW, "no_rope_layers": [1, 0]},
    "mistral": WIDE | ALL_FAR,
    "mistral (windows)": WIDE | ALL_LOCAL,
    "mixtral": WIDE | LOCAL_EXPERTS | ALL_FAR,
    "gemma": WIDE,
    "gemma2": WIDE | CAPS | ALL_LOCAL,
    "gemma3_text": WIDE | ONE_LOCAL | {"query_pre_attn_scalar": 8},
    "recurrent_gemma": WIDE
    | {"lru_width": 32, "attention_window_size": WINDOW, "block_types": ["recurrent", "attention"]},
    "granite": GROUPED
    | {"logits_scaling": 8.0, "attention_multiplier": 0.1, "residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    "cohere2": WIDE | ONE_LOCAL | {"logit_scale": 0.25},
    "phi3": GROUPED | ALL_FAR,
    "phi3 (windows)": GROUPED | ALL_LOCAL,
    "gpt2": GPT,
    "gpt_neox": MOST,
    "gpt_oss": WIDE | LOCAL_EXPERTS | ONE_LOCAL,
    "opt": MOST | {"ffn_dim": 48, "word_embed_proj_dim": 16},
    "xglm": {"vocab_size": V, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4} | ENDS,
    "biogpt": MOST,
    "bloom": {"vocab_size": V, "hidden_size": 32, "n_layer": 2, "n_head": 4} | ENDS,
    "mpt": {"vocab_size": V, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "expansion_ratio": 2},
    "falcon": MOST,
    "olmo2": GROUPED,
    "smollm3": GROUPED | {"no_rope_layers": [1, 0]},
    "glm4": WIDE,
    "deepseek_v3": MOST | {"num_key_value_heads": 4} | LATENT | ROUTED,
    "ernie4_5": WIDE,
    "exaone4": WIDE | ONE_LOCAL,
    "seed_oss": WIDE,
    "minimax": WIDE | LOCAL_EXPERTS | {"layer_types": ["linear_attention", "full_attention"], "block_size": 4},
    "mamba": MAMBA,
    "jamba": GROUPED
    | {"num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1}
    | {"mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "lfm2": GROUPED | {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48, "block_multiple_of": 8},
    "rwkv": STATES | {"context_length": 64, "attention_hidden_size": 32, "intermediate_size": 48},
    "xlnet": {"vocab_size": V, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48} | ENDS,
}


def make_architecture(name: str, **more):
    """A random model whose predictions depend on what it reads, and a tokenizer for it."""
    tokenizer = make_tokenizer()
    config = AutoConfig.for_model(name.split()[0], **(ARCHITECTURES[name] | more))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for part, parameter in model.named_parameters():
                if parameter.ndim > 1 or "bias" in part:
                    parameter.normal_(0, 0.3)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    return model, tokenizer
