"""The head of any model, for as many hidden states at a time as fit: its own forward pass, without its layers.

Between the last hidden states and the logits a model may scale or cap them as it likes. So the layers run once, and
then the model's own forward pass runs for each chunk, in which they return what they made. Whether a model is built so
is tried on a few tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_lab.rollout.prompts import evaluating

TRIED = 5  # tokens
_has_own_head: dict[tuple, bool] = {}  # by architecture


def has_own_head(model) -> bool:
    """True if the model's logits at a token are a function of the last hidden state of its layers there, and no more.

    The first time a model has none, it is said: the logits of all tokens will be in memory at once.
    """
    kind = (type(model), model.config.to_json_string())
    if kind not in _has_own_head:
        _has_own_head[kind] = _try_out(model)
        if not _has_own_head[kind]:
            print(f"logits: {type(model).__name__} makes those of all tokens at once; its head takes none alone")
    return _has_own_head[kind]


@torch.no_grad()
def _try_out(model) -> bool:
    if model.base_model is model:
        return False
    ids = torch.arange(TRIED, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    with evaluating(model):
        expected = model(ids, use_cache=False).logits
        output = model.base_model(ids, use_cache=False)
        backwards = logits_of(model, output, output[0].flip(1))
    return backwards.shape == expected.shape and torch.allclose(backwards.flip(1), expected, rtol=1e-4, atol=1e-4)


def logits_of(model, output, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
    """What the model makes of hidden states; output: anything that its layers have returned."""
    with _layers_that_return(model.base_model, type(output)(**(dict(output) | {"last_hidden_state": hidden}))):
        ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)  # nobody reads them
        return model(ids, use_cache=False).logits


def in_chunks(
    function, model, output, hidden: Float[Tensor, "N D"], ids: Int[Tensor, " N"], chunk: int
) -> tuple[Float[Tensor, " N"] | None, ...]:
    """`function(logits, ids)`, numbers per token or None, in chunks; backward computes each chunk's logits again."""

    def values(h, y):
        return function(logits_of(model, output, h[None]), y[None])

    pairs = zip(hidden.split(chunk), ids.split(chunk), strict=True)
    parts = [checkpoint(values, h, y, use_reentrant=False, preserve_rng_state=False) for h, y in pairs]
    return tuple(None if each[0] is None else torch.cat(each, dim=1)[0] for each in zip(*parts, strict=True))


@contextmanager
def _layers_that_return(layers, output) -> Iterator[None]:
    """Let a module return this for a while, whatever it is given."""
    own_forward = vars(layers).get("forward")  # where a wrapper has set one beside the class's
    layers.forward = lambda *_, **__: output
    try:
        yield
    finally:
        del layers.forward
        if own_forward is not None:
            layers.forward = own_forward
