"""The head of any model, for as many hidden states at a time as fit: its own forward pass, without its layers.

Between the last hidden states and the logits a model may scale or cap them as it likes. So the layers run once, and
then the model's own forward pass runs for each chunk, in which they return what they made. Whether a model is built so
is tried on a few tokens.

For as long as a chunk takes, the `forward` of the layers' module is another one. So hooks of that module run once more
for each chunk; a compiled module, or one wrapped by FSDP, may ignore the change, and then the trial finds a difference.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_lab.rollout.forward.modes import evaluating

TRIED = 5  # tokens
_has_head_only: dict[tuple, bool] = {}  # by architecture


def has_head_only(model) -> bool:
    """True if the model's logits at a token are a function of the last hidden state of its layers there, and no more.

    The first time a model has none, a warning says so: the logits of all tokens will be in memory at once.
    """
    kind = (type(model), model.config.to_json_string())
    if kind not in _has_head_only:
        _has_head_only[kind] = _try_out(model)
        if not _has_head_only[kind]:
            problem = f"{type(model).__name__} makes the logits of all tokens at once; its head cannot run alone"
            warnings.warn(problem, stacklevel=2)
    return _has_head_only[kind]


@torch.no_grad()
def _try_out(model) -> bool:
    if model.base_model is model:
        return False
    ids = torch.arange(TRIED, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    with evaluating(model):
        expected = model(ids, use_cache=False).logits
        output = model.base_model(ids, use_cache=False)
        backwards = HeadOnly(model, output).logits(output[0].flip(1))
    return backwards.shape == expected.shape and torch.allclose(backwards.flip(1), expected, rtol=1e-4, atol=1e-4)


class HeadOnly:
    """The part of a model that comes after its layers: their output becomes logits.

    Args:
        output: anything that the layers, `model.base_model`, have returned; its hidden states are replaced.
    """

    def __init__(self, model, output):
        self.model = model
        self.output = output

    def logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The logits that the model makes of these hidden states."""
        output = type(self.output)(**(dict(self.output) | {"last_hidden_state": hidden}))
        with _layers_that_return(self.model.base_model, output):
            ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)  # nobody reads them
            return self.model(ids, use_cache=False).logits

    def in_chunks(
        self, function: Callable, hidden: Float[Tensor, "N D"], ids: Int[Tensor, " N"], chunk: int
    ) -> tuple[Float[Tensor, " N"] | None, ...]:
        """`function(logits, ids)`, numbers per token or None; backward computes the logits of each chunk again."""

        def of_chunk(hidden, ids):
            return function(self.logits(hidden[None]), ids[None])

        pairs = zip(hidden.split(chunk), ids.split(chunk), strict=True)
        parts = [checkpoint(of_chunk, *pair, use_reentrant=False, preserve_rng_state=False) for pair in pairs]
        outputs = zip(*parts, strict=True)
        return tuple(None if chunks[0] is None else torch.cat(chunks, dim=1)[0] for chunks in outputs)


@contextmanager
def _layers_that_return(layers, output) -> Iterator[None]:
    """Let a module return this for a while, whatever its arguments are."""
    own_forward = vars(layers).get("forward")  # where a wrapper has set one beside the class's
    layers.forward = lambda *_, **__: output
    try:
        yield
    finally:
        del layers.forward
        if own_forward is not None:
            layers.forward = own_forward
