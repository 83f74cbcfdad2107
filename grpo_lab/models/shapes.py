"""The shape of a model, which determines the time and memory of a step."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.rollout.model import head_dim

# {name: settings of the transformers configuration}. "qwen2" is Qwen2-0.5B-Instruct with 494,032,768 parameters, and
# "smollm2" is SmolLM2-135M-Instruct with 134,515,008, each as in its config.json. SmolLM2 has Llama's architecture,
# which is Qwen2's without biases. "small" is a Qwen2 for tests: all sizes in its configuration differ, so that a
# formula for memory that takes one for another is noticed.
SHAPES: dict[str, dict] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def shape_config(shape: str) -> Qwen2Config | LlamaConfig:
    """Return the transformers configuration of a shape in `SHAPES`."""
    check_choice("shape", shape, SHAPES)
    config_class = LlamaConfig if shape == "smollm2" else Qwen2Config
    return config_class(**SHAPES[shape], bos_token_id=None, eos_token_id=None, pad_token_id=None)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a transformer that is built like Qwen2."""

    parameter_sizes: tuple[int, ...]  # number of elements of each parameter; tied parameters count once
    linear_parameters: int  # number of elements of the layers' linear maps, which autocast copies to half precision
    layers: int  # number of layers
    width: int  # D, hidden width
    query_width: int  # query heads x width of a head
    key_width: int  # key heads x width of a head
    mlp_width: int  # F, width inside the MLP
    heads: int  # number of query heads
    vocabulary: int  # V, number of tokens
    has_tied_head: bool  # True if the input embedding and the output head are one matrix

    @property
    def parameters(self) -> int:
        return sum(self.parameter_sizes)


def shape_of(model_config) -> ModelShape:
    """Return the sizes of the model that a transformers configuration describes, without allocating its weights.

    Raises:
        ValueError: if the configuration lacks a size that is read here, or is not that of a causal language model.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model_config)
        linear_maps = [module for module in model.base_model.modules() if isinstance(module, torch.nn.Linear)]
        return ModelShape(
            parameter_sizes=tuple(p.numel() for p in model.parameters()),
            linear_parameters=sum(p.numel() for linear_map in linear_maps for p in linear_map.parameters()),
            layers=model_config.num_hidden_layers,
            width=model_config.hidden_size,
            query_width=head_dim(model_config) * model_config.num_attention_heads,
            key_width=head_dim(model_config) * model_config.num_key_value_heads,
            mlp_width=model_config.intermediate_size,
            heads=model_config.num_attention_heads,
            vocabulary=model_config.vocab_size,
            has_tied_head=bool(model_config.tie_word_embeddings),
        )
    except (AttributeError, ValueError) as error:
        raise InputError(f"model_config is not of Qwen2's kind: {error!s:.100}") from error
