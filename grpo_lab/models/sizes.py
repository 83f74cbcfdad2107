"""The sizes of a model on which its memory depends, read from its configuration alone."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a transformer of Qwen2's kind."""

    sizes: tuple[int, ...]  # numbers in each parameter; tied ones once
    linear: int  # numbers in the layers' linear maps: what autocast copies to half precision
    layers: int
    width: int  # D
    queries: int  # heads x width of a head
    keys: int  # key heads x width of a head
    inner: int  # width inside the MLP, F
    heads: int
    vocabulary: int  # V
    tied: bool

    @property
    def parameters(self) -> int:
        return sum(self.sizes)


def shape_of(model_config) -> ModelShape:
    """The sizes of the model of a transformers configuration; no memory is taken for its weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    head_dim = getattr(model_config, "head_dim", None) or model_config.hidden_size // model_config.num_attention_heads
    linear = [m for m in model.base_model.modules() if isinstance(m, torch.nn.Linear)]
    return ModelShape(
        sizes=tuple(p.numel() for p in model.parameters()),
        linear=sum(p.numel() for m in linear for p in m.parameters()),
        layers=model_config.num_hidden_layers,
        width=model_config.hidden_size,
        queries=head_dim * model_config.num_attention_heads,
        keys=head_dim * model_config.num_key_value_heads,
        inner=model_config.intermediate_size,
        heads=model_config.num_attention_heads,
        vocabulary=model_config.vocab_size,
        tied=bool(model_config.tie_word_embeddings),
    )
