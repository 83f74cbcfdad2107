"""The shape of a model, on which time and memory of a step depend, and not on what its weights have learnt."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.rollout.forward.fast_paths import head_dim

# As in their config.json: Qwen2-0.5B-Instruct, 494,032,768 parameters; SmolLM2-135M-Instruct, 134,515,008, of Llama's
# kind, which is Qwen2's without biases. "small", of Qwen2's, is for a test: every proportion that a formula for memory
# could get wrong differs.
SHAPES: dict[str, dict] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def shape_config(shape: str) -> Qwen2Config | LlamaConfig:
    """The transformers configuration of a shape in `SHAPES`."""
    check_choice("shape", shape, SHAPES)
    kind = LlamaConfig if shape == "smollm2" else Qwen2Config
    return kind(**SHAPES[shape], bos_token_id=None, eos_token_id=None, pad_token_id=None)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a transformer of Qwen2's kind."""

    parameter_sizes: tuple[int, ...]  # numbers in each parameter; tied ones once
    linear_parameters: int  # numbers in the layers' linear maps: what autocast copies to half precision
    layers: int
    width: int  # D
    query_width: int  # heads x width of a head
    key_width: int  # key heads x width of a head
    mlp_width: int  # width inside the MLP, F
    heads: int
    vocabulary: int  # V
    tied: bool

    @property
    def parameters(self) -> int:
        return sum(self.parameter_sizes)


def shape_of(model_config) -> ModelShape:
    """The sizes of the model of a transformers configuration; no memory is taken for its weights.

    Raises:
        ValueError: for a model that is not of Qwen2's kind, whose parts are not known.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model_config)
        linear = [m for m in model.base_model.modules() if isinstance(m, torch.nn.Linear)]
        return ModelShape(
            parameter_sizes=tuple(p.numel() for p in model.parameters()),
            linear_parameters=sum(p.numel() for m in linear for p in m.parameters()),
            layers=model_config.num_hidden_layers,
            width=model_config.hidden_size,
            query_width=head_dim(model_config) * model_config.num_attention_heads,
            key_width=head_dim(model_config) * model_config.num_key_value_heads,
            mlp_width=model_config.intermediate_size,
            heads=model_config.num_attention_heads,
            vocabulary=model_config.vocab_size,
            tied=bool(model_config.tie_word_embeddings),
        )
    except (AttributeError, ValueError) as error:
        raise InputError(f"model_config is not of Qwen2's kind: {error!s:.100}") from error
