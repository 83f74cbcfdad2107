"""The layers of a model and its head: how tokens become hidden states, and hidden states become logits."""

import inspect
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_lab.logprobs import token_entropy, token_logprobs

# Between output embedding and softmax, by the beginning of model_type: the setting that stands there, and its exponent.
SCALES = {
    "granite": ("logits_scaling", -1),
    "hyperclovax": ("logits_scaling", 1),
    "cohere": ("logit_scale", 1),
    "falcon_h1": ("lm_head_multiplier", 1),
}
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap")  # the names of the same in different configurations


def run_layers(model, ids: Int[Tensor, "B S"], **inputs):
    """What the model computes below its head. Inputs that this architecture has no name for are left out.

    One without `position_ids` finds the positions in the mask, or needs none.
    """
    layers = layers_of(model)
    return layers(ids, **{name: value for name, value in inputs.items() if takes(layers, name)})


def layers_of(model) -> torch.nn.Module:
    """The model without its head."""
    return model.base_model if model.base_model is not model else model.model


def takes(module: torch.nn.Module, name: str) -> bool:
    """Whether an input has this name, or any name will do."""
    names = _names(type(module).forward)
    return name in names or names <= {"self", "args", "kwargs"}


@cache
def _names(forward) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


@dataclass(frozen=True)
class Head:
    """How hidden states become logits: h W^T + b, times the scale; the soft cap c bends them to c tanh(logits / c)."""

    projection: torch.nn.Module
    scale: float = 1.0
    soft_cap: float | None = None

    @property
    def weight(self) -> Float[Tensor, "V D"]:
        return self.projection.weight

    @property
    def is_linear(self) -> bool:
        """Whether the logits are h W^T up to a factor, which a temperature can hold."""
        return self.soft_cap is None and getattr(self.projection, "bias", None) is None and self.scale > 0

    def logits(self, hidden: Float[Tensor, "*N D"]) -> Float[Tensor, "*N V"]:
        logits = self.projection(hidden)
        if self.scale != 1:
            logits = logits * self.scale
        return logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)


def head_of(model) -> Head:
    """The head of a model, read from its configuration. The self-check holds it against the model's own logits."""
    config, projection = model.config.get_text_config(), model.get_output_embeddings()
    if not isinstance(getattr(projection, "weight", None), Tensor):
        raise ValueError(f"model is a {type(model).__name__} without an output embedding; expected a language model")
    scale = 1.0
    for kind, (name, exponent) in SCALES.items():
        if config.model_type.startswith(kind):
            scale = float(getattr(config, name)) ** exponent
    cap = next((value for name in SOFT_CAPS if (value := getattr(config, name, None)) is not None), None)
    return Head(projection, scale, cap)


def chunked_head(
    head: Head, hidden: Float[Tensor, "B T D"], ids: Int[Tensor, "B T"], temperature: float, chunk_size: int
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Log-probability and entropy under any head, a chunk of tokens at a time; backward makes their logits again.

    `chunked_logprobs_and_entropy` needs less memory, and a head that is linear.
    """

    def of_chunk(h, y):
        logits = head.logits(h)[None]
        return token_logprobs(logits, y[None], temperature)[0], token_entropy(logits, temperature)[0]

    rows = hidden.reshape(-1, hidden.shape[-1])
    chunks = zip(rows.split(chunk_size), ids.reshape(-1).split(chunk_size), strict=True)
    parts = [checkpoint(of_chunk, h, y, use_reentrant=False) for h, y in chunks]
    logp, entropy = (torch.cat(values).view(ids.shape) for values in zip(*parts, strict=True))
    return logp, entropy
