"""The head of any model, applied to one chunk of hidden states at a time.

Between the last hidden states and the logits, a model may scale or cap values as it likes. So the layers run once for
all tokens. Then the model's own forward pass runs for each chunk, with layers that return the hidden states of the
chunk instead of computing. A trial on a few tokens shows whether a model allows this.

For each chunk, the `forward` of the module that holds the layers is replaced for a while. So the hooks of this module
run once more per chunk. A compiled module, or a module that FSDP has wrapped, may ignore the replacement; then the
trial finds a difference.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_lab.rollout.forward.modes import evaluation_mode

TRIAL_TOKENS = 5
_results_of_trials: dict[tuple, bool] = {}  # keys: (class of the model, configuration)


def has_separable_head(model) -> bool:
    """Return True if the model's logits at a token depend only on the last hidden state of its layers at this token.

    If they do not, the first call warns: the logits of all tokens will be in memory at once.
    """
    kind = (type(model), model.config.to_json_string())
    if kind not in _results_of_trials:
        _results_of_trials[kind] = _try_head(model)
        if not _results_of_trials[kind]:
            problem = f"{type(model).__name__} makes the logits of all tokens at once; its head cannot run alone"
            warnings.warn(problem, stacklevel=2)
    return _results_of_trials[kind]


@torch.no_grad()
def _try_head(model) -> bool:
    """Return True if hidden states in reverse order give the model's logits in reverse order by its head alone."""
    if model.base_model is model:
        return False
    ids = torch.arange(TRIAL_TOKENS, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    with evaluation_mode(model):
        expected = model(ids, use_cache=False).logits
        output = model.base_model(ids, use_cache=False)
        reversed_logits = ModelHead(model, output).logits(output[0].flip(1))
    if reversed_logits.shape != expected.shape:
        return False
    return torch.allclose(reversed_logits.flip(1), expected, rtol=1e-4, atol=1e-4)


class ModelHead:
    """The part of a model after its layers, which turns hidden states into logits.

    Args:
        model: A model for which `has_separable_head` is True.
        output: Any output of `model.base_model`, the layers; its hidden states are replaced at each call.
    """

    def __init__(self, model, output):
        self.model = model
        self.output = output

    def logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """Return the logits that the model computes from these hidden states."""
        output = type(self.output)(**(dict(self.output) | {"last_hidden_state": hidden}))
        with _layers_that_return(self.model.base_model, output):
            ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)  # not read
            return self.model(ids, use_cache=False).logits

    def in_chunks(
        self, function: Callable, hidden: Float[Tensor, "N D"], ids: Int[Tensor, " N"], chunk: int
    ) -> tuple[Any, ...]:
        """Apply `function(logits, ids)` to one chunk of tokens at a time.

        The backward pass computes the logits of each chunk again.

        Args:
            function: Takes logits of shape (1, n, V) and ids of shape (1, n), and returns a tuple, each entry of which
                is a tensor of shape (1, n) or None.
            hidden: The last hidden states.
            ids: The token ids that `function` gets with the logits.
            chunk: Number of tokens of a chunk.

        Returns:
            The tuple of `function` for all tokens; tensors have the shape (1, N).
        """

        def apply_to_chunk(hidden, ids):
            return function(self.logits(hidden[None]), ids[None])

        chunks = zip(hidden.split(chunk), ids.split(chunk), strict=True)
        results = [checkpoint(apply_to_chunk, *pair, use_reentrant=False, preserve_rng_state=False) for pair in chunks]
        values_of_chunks = zip(*results, strict=True)
        return tuple(None if values[0] is None else torch.cat(values, dim=1) for values in values_of_chunks)


@contextmanager
def _layers_that_return(layers, output) -> Iterator[None]:
    """Inside this context, let the module `layers` return `output`, whatever its arguments are."""
    instance_forward = vars(layers).get("forward")  # set on the instance by a wrapper; None if it is the class's
    layers.forward = lambda *_, **__: output
    try:
        yield
    finally:
        del layers.forward
        if instance_forward is not None:
            layers.forward = instance_forward
