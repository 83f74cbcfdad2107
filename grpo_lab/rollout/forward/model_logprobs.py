"""The log-probability of each token of a completion under a model, with gradient.

`compute_logprobs` runs the model and passes its logits to the formulas of `grpo_lab/logprobs.py`. The trainer calls it
for rows of an experience (`trainer/experience.py`). In float32 the result agrees to 1e-4 with the log-probabilities
recorded while sampling.

On the fast path (`has_fast_path`), a common prefix of several rows is computed once (`packing.py`), and the logits of
many tokens are computed in chunks (`_packed_logprobs`). Any other model computes whole rows, and chunks of logits with
its own head (`_plain_logprobs`, `ModelHead`).
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_lab.logprobs import (
    LARGE_VOCABULARY,
    chunked_logprobs_and_entropy,
    chunked_token_logprobs,
    token_entropy,
    token_logprobs,
)
from grpo_lab.rollout.forward.packing import packed_hidden
from grpo_lab.rollout.model import evaluation_mode, has_fast_path
from grpo_lab.rollout.rollout import LogprobInputs

MAX_LOGITS_AT_ONCE = 2**25  # numbers (128 MiB in float32); more logits than this are computed in chunks
TRIAL_TOKENS = 5
_results_of_trials: dict[tuple, bool] = {}  # keys: (class of the model, configuration)


class LogprobsAndEntropy(NamedTuple):
    """The log-probability of each token, and the entropy of the distribution from which it was drawn, in nats."""

    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"] | None  # None if entropies are not needed

    def apply(self, function: Callable[[Tensor], Tensor]) -> "LogprobsAndEntropy":
        """Return the results of a function of one tensor for the log-probabilities and the entropies."""
        return LogprobsAndEntropy(function(self.logp), None if self.entropy is None else function(self.entropy))


def compute_logprobs(
    model,
    prompt_ids: Int[Tensor, "P L"],
    prompt_mask: Bool[Tensor, "P L"],
    completion_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    prompt_of_row: Int[Tensor, " B"],
    *,
    temperature: float = 1.0,
    with_entropy: bool = True,
    policy_mask: Bool[Tensor, "B T"] | None = None,
) -> LogprobsAndEntropy:
    """Compute the log-probability and entropy of given completions under the model, with gradient if it is enabled.

    Args:
        model: The policy.
        prompt_ids: The prompts, shape (P, L), padded on the left.
        prompt_mask: False at padding of the prompts, shape (P, L).
        completion_ids: The completions, shape (B, T), padded on the right.
        mask: True from the first token of a completion to its last, shape (B, T), also at tokens that no loss counts.
        prompt_of_row: Index of the prompt that a row answers, shape (B,).
        temperature: The temperature that the tokens were sampled with.
        with_entropy: False saves the time and memory of the entropy.
        policy_mask: True at the tokens whose log-probability is needed, those that the policy wrote, shape (B, T). On
            the fast path, no logits are computed for the others. None: all tokens under the mask.

    Returns:
        A pair of the log-probabilities and the entropies, both of shape (B, T); None for the entropies without
        `with_entropy`. Values where the mask is False are undefined, but finite. The gradient of a log-probability with
        respect to the logits is (onehot - p) / temperature, with p = softmax(logits / temperature).
    """
    inputs = LogprobInputs(prompt_ids, prompt_mask, completion_ids, mask, prompt_of_row)
    needed_mask = mask if policy_mask is None else mask & policy_mask
    logprobs_of_rows = _packed_logprobs if has_fast_path(model) else _plain_logprobs
    return logprobs_of_rows(model, inputs, needed_mask, temperature, with_entropy)


def _packed_logprobs(
    model, inputs: LogprobInputs, needed_mask: Bool[Tensor, "B T"], temperature: float, with_entropy: bool
) -> LogprobsAndEntropy:
    """Compute log-probabilities from a packed sequence, in which a common prefix of several rows is computed once.

    Tokens at which `needed_mask` is False get 0.
    """
    hidden, predictor_index = packed_hidden(model, inputs)
    head = model.get_output_embeddings()
    vocab_size, hidden_size = head.weight.shape
    token_index = needed_mask.nonzero(as_tuple=True)  # computed once, since it waits for the GPU
    # A pair is a prefix and the token after it; its code is one number. Rows with the same pair share a
    # log-probability.
    pair_codes = predictor_index[token_index] * vocab_size + inputs.completion_ids[token_index]
    pair_codes, pair_index = pair_codes.unique(return_inverse=True)
    hidden = hidden.index_select(0, pair_codes // vocab_size)[None]
    ids = pair_codes[None] % vocab_size
    chunk_size = head_chunk_tokens(len(pair_codes), vocab_size, hidden_size, head.weight.device.type)
    if chunk_size is None:
        pair_logprobs = _logprobs_and_entropy(_head_logits(head, hidden), ids, temperature, with_entropy)
    elif with_entropy:
        pair_logprobs = LogprobsAndEntropy(
            *chunked_logprobs_and_entropy(hidden, head.weight, ids, temperature, chunk_size)
        )
    else:
        pair_logprobs = LogprobsAndEntropy(
            chunked_token_logprobs(hidden, head.weight, ids, temperature, chunk_size), None
        )
    return pair_logprobs.apply(lambda values: _values_at_mask(values[0, pair_index], needed_mask))


def _plain_logprobs(
    model, inputs: LogprobInputs, needed_mask: Bool[Tensor, "B T"], temperature: float, with_entropy: bool
) -> LogprobsAndEntropy:
    """Compute log-probabilities by the model's own forward pass over whole rows, padded on the right.

    If the logits are computed in chunks, tokens at which `needed_mask` is False get 0.
    """
    keywords, predictor_index = _right_padded_rows(inputs)
    head_weight = model.get_output_embeddings().weight
    vocab_size, hidden_size = head_weight.shape
    chunk_size = head_chunk_tokens(keywords["input_ids"].numel(), vocab_size, hidden_size, head_weight.device.type)
    if chunk_size is None or not has_separable_head(model):
        logits = model(**keywords).logits  # B S V
        logits = logits.gather(1, predictor_index[..., None].expand(-1, -1, logits.shape[-1]))
        return _logprobs_and_entropy(logits, inputs.completion_ids, temperature, with_entropy)
    output = model.base_model(**keywords)
    rows, columns = needed_mask.nonzero(as_tuple=True)
    hidden = output[0][rows, predictor_index[rows, columns]]
    logprobs_of_chunk = partial(_logprobs_and_entropy, temperature=temperature, with_entropy=with_entropy)
    model_head = ModelHead(model, output)
    needed_ids = inputs.completion_ids[rows, columns]
    needed_logprobs = LogprobsAndEntropy(*model_head.apply_in_chunks(logprobs_of_chunk, hidden, needed_ids, chunk_size))
    return needed_logprobs.apply(lambda values: _values_at_mask(values[0], needed_mask))


def _right_padded_rows(inputs: LogprobInputs) -> tuple[dict[str, Any], Int[Tensor, "B T"]]:
    """Prepare a forward pass over whole rows, with all padding of a row moved to its end.

    Returns:
        The keyword arguments of the forward pass, and the column that predicts each token of the completions.
    """
    prompt_mask = inputs.prompt_mask[inputs.prompt_of_row]  # B L
    ids = torch.cat([inputs.prompt_ids[inputs.prompt_of_row], inputs.completion_ids], dim=1)
    is_token = torch.cat([prompt_mask, inputs.mask], dim=1)
    tokens_first = (~is_token).int().argsort(dim=1, stable=True)
    ids, is_token = ids.gather(1, tokens_first), is_token.gather(1, tokens_first)
    last_of_prompt = prompt_mask.sum(-1, keepdim=True) - 1  # B 1, predicts the completion's first token
    predictor_index = last_of_prompt + torch.arange(inputs.completion_ids.shape[1], device=ids.device)
    return {"input_ids": ids, "attention_mask": is_token.long(), "use_cache": False}, predictor_index


def _logprobs_and_entropy(
    logits: Float[Tensor, "B T V"], ids: Int[Tensor, "B T"], temperature: float, with_entropy: bool
) -> LogprobsAndEntropy:
    logp = token_logprobs(logits, ids, temperature)
    return LogprobsAndEntropy(logp, token_entropy(logits, temperature) if with_entropy else None)


def _values_at_mask(values: Float[Tensor, " N"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the N values at the True places of the mask, in the order of its rows, and 0 elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def head_chunk_tokens(num_tokens: int, vocab_size: int, hidden_size: int, device_type: str) -> int | None:
    """Return the number of tokens whose logits are computed at the same time; None if all tokens fit into one chunk.

    On a GPU, each chunk ends with the addition of a product of the size of the embedding. So few large chunks are much
    faster than many small ones. A chunk has half as many tokens as the model is wide: then two float32 copies of its
    logits take as much memory as the float32 gradient, and the addition takes about as long as one of the products.

    Args:
        num_tokens: Number of tokens whose logits are needed.
        vocab_size: V, number of tokens of the vocabulary.
        hidden_size: D, width of the model.
        device_type: Type of the device, such as "cuda".
    """
    if num_tokens * vocab_size <= MAX_LOGITS_AT_ONCE:
        return None
    chunk_size = max(1, MAX_LOGITS_AT_ONCE // (4 * vocab_size))
    return min(num_tokens, max(chunk_size, hidden_size // 2) if device_type == "cuda" else chunk_size)


def _head_logits(head, hidden: Float[Tensor, "1 N D"]) -> Float[Tensor, "1 N V"]:
    is_linear = type(head) is torch.nn.Linear and head.bias is None
    if is_linear and adds_head_gradient_in_place(len(head.weight), torch.is_autocast_enabled(hidden.device.type)):
        return _LargeHead.apply(hidden, head.weight)
    return head(hidden)


def adds_head_gradient_in_place(vocab_size: int, autocast: bool) -> bool:
    """Return True if logits that are not computed in chunks are computed by `_LargeHead`.

    Autograd adds the weight's gradient of `_LargeHead` in place to that of a tied embedding. The plan of a run's memory
    depends on it (memory/phases.py).
    """
    return vocab_size > LARGE_VOCABULARY and not autocast


class _LargeHead(torch.autograd.Function):
    """The linear map of a head; the gradient of its weight is a product and not a transposed view of one.

    If input and output embedding share one weight, autograd adds up two gradients. It adds in place, but not to a view:
    then it would allocate a third tensor of the size of the embedding.
    """

    @staticmethod
    def forward(ctx, hidden, weight):
        ctx.save_for_backward(hidden, weight)
        return torch.nn.functional.linear(hidden, weight)

    @staticmethod
    def backward(ctx, grad_logits):
        hidden, weight = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad
        grad_weight = grad_logits.flatten(0, -2).T @ hidden.flatten(0, -2) if need_weight else None
        return grad_logits @ weight if need_hidden else None, grad_weight


def has_separable_head(model) -> bool:
    """Return True if the model's logits at a token depend only on the last hidden state of its layers at this token.

    If they do not, the first call warns: the logits of all tokens will be in memory at once.
    """
    cache_key = (type(model), model.config.to_json_string())
    if cache_key not in _results_of_trials:
        _results_of_trials[cache_key] = _is_head_separable_on_trial(model)
        if not _results_of_trials[cache_key]:
            problem = f"{type(model).__name__} makes the logits of all tokens at once; its head cannot run alone"
            warnings.warn(problem, stacklevel=2)
    return _results_of_trials[cache_key]


@torch.no_grad()
def _is_head_separable_on_trial(model) -> bool:
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

    It may scale or cap values as it likes. So the model's own forward pass computes the logits, while the `forward` of
    the module that holds the layers is replaced by a function that returns the hidden states; the hooks of this module
    run once more at each call. A compiled module, or one that FSDP has wrapped, may ignore the replacement: a trial on
    a few tokens (`has_separable_head`) finds this out.

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

    def apply_in_chunks(
        self, function: Callable, hidden: Float[Tensor, "N D"], ids: Int[Tensor, " N"], chunk_size: int
    ) -> tuple[Any, ...]:
        """Apply `function(logits, ids)` to one chunk of tokens at a time.

        The backward pass computes the logits of each chunk again.

        Args:
            function: Takes logits of shape (1, n, V) and ids of shape (1, n), and returns a tuple, each entry of which
                is a tensor of shape (1, n) or None.
            hidden: The last hidden states.
            ids: The token ids that `function` gets with the logits.
            chunk_size: Number of tokens of a chunk.

        Returns:
            The tuple of `function` for all tokens; tensors have the shape (1, N).
        """

        def apply_to_chunk(hidden, ids):
            return function(self.logits(hidden[None]), ids[None])

        chunks = zip(hidden.split(chunk_size), ids.split(chunk_size), strict=True)
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
