"""The formulas for the log-probabilities of sampled tokens, the entropy, and the completion mask.

They start from logits or hidden states, which `rollout/forward/model_logprobs.py` computes with a model.

Axes: B rows, T completion tokens, V vocabulary, D hidden width. This code departs from the usual one in two points, on
purpose: the temperature is part of the log-probability (a policy sampled at temperature 0.7 *is* another policy), and
half-precision logits are converted to float32 before the softmax.

Invalid arguments raise a ValueError that names the argument; only `head_logits` does not check its arguments.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputError, check_at_least, check_dtype, check_positive, check_shapes

LARGE_VOCABULARY = 4096  # tokens; with a larger vocabulary, a CPU computes the logits block by block
VOCABULARY_BLOCK = 1024  # tokens of a block


def token_logprobs(
    logits: Float[Tensor, "B T V"], token_ids: Int[Tensor, "B T"], temperature: float = 1.0
) -> Float[Tensor, "B T"]:
    r"""Compute the log-probability of each sampled token under the policy at this temperature.

    z_{b,t,v} = \frac{\ell_{b,t,v}}{\tau} \tag{1.15}
    \log \pi_{b,t} = z_{b,t,y_{b,t}} - \log \sum_v e^{z_{b,t,v}} \tag{1.2}

    Args:
        logits: \ell, of any size; large ones do not overflow. Minus infinity excludes a token. The logits at position t
            predict token t.
        token_ids: y, the sampled tokens.
        temperature: \tau > 0, the temperature that the tokens were sampled with.

    Returns:
        Log-probabilities in nats, at most 0; minus infinity for an excluded token.

    Source: softmax with temperature; Sutton and Barto, "Reinforcement Learning", section 13.1.
    """
    check_positive("temperature", temperature)
    check_shapes(logits=(logits, "B T V"), token_ids=(token_ids, "B T"))
    check_dtype("token_ids", token_ids, "int")
    z = _at_least_float32(logits) / temperature  # B T V (1.15)
    logp = z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)  # B T (1.2)
    return logp


def token_entropy(logits: Float[Tensor, "B T V"], temperature: float = 1.0) -> Float[Tensor, "B T"]:
    r"""Compute the entropy of the policy's distribution over the vocabulary at each position.

    \log \pi_{b,t,v} = z_{b,t,v} - \log \sum_{w} e^{z_{b,t,w}}, \quad z = \ell / \tau \tag{1.16}
    H_{b,t} = -\sum_v \pi_{b,t,v} \log \pi_{b,t,v} \tag{1.17}

    Args:
        logits: \ell, finite and of any size; large ones do not overflow. A token whose probability is zero in floating
            point adds zero to the entropy and to its gradient.
        temperature: \tau > 0, the temperature that the tokens were sampled with.

    Returns:
        Entropies in nats, between 0 and log V.

    Source: Shannon (1948).
    """
    check_positive("temperature", temperature)
    check_shapes(logits=(logits, "B T V"))
    logp = (_at_least_float32(logits) / temperature).log_softmax(-1)  # B T V (1.16)
    entropy = -(logp.exp() * logp).sum(-1)  # B T (1.17)
    return entropy


def completion_mask(completion_ids: Int[Tensor, "B T"], eos_token_id: int | list[int]) -> Bool[Tensor, "B T"]:
    r"""Mark the positions that belong to the completion, including its end token.

    n_{b,t} = \sum_{t' < t} \mathbb{1}[y_{b,t'} = \text{eos}] \tag{1.13}
    m_{b,t} = \mathbb{1}[n_{b,t} = 0] \tag{1.14}

    The first end token belongs to the completion, since the policy chose to stop there. The tokens after it do not. The
    mask depends on positions, so it is also right if the padding token *is* the end token.

    Args:
        completion_ids: y, the tokens after the prompt.
        eos_token_id: the end token, or a list of end tokens; the first one that occurs ends the completion.

    Returns:
        True up to and including the first end token; all True in a row without an end token.
    """
    check_shapes(completion_ids=(completion_ids, "B T"))
    check_dtype("completion_ids", completion_ids, "int")
    if eos_token_id is None:
        raise InputError("eos_token_id is None; expected an end token, or a list of them")
    end_ids = torch.tensor(eos_token_id, device=completion_ids.device).reshape(-1)
    is_end = torch.isin(completion_ids, end_ids).long()
    ends_before = is_end.cumsum(-1) - is_end  # B T (1.13)
    mask = ends_before == 0  # B T (1.14)
    return mask


def chunked_token_logprobs(
    hidden: Float[Tensor, "B T D"],
    lm_head_weight: Float[Tensor, "V D"],
    token_ids: Int[Tensor, "B T"],
    temperature: float = 1.0,
    chunk_size: int = 256,
) -> Float[Tensor, "B T"]:
    r"""Compute Eq. (1.15) and (1.2) chunk by chunk, without ever holding the logits of the whole batch.

    Only the logits of `chunk_size` tokens exist at a time; the backward pass computes them again. So the memory besides
    the result and the gradients does not grow with B*T.

    Args:
        hidden: last hidden states; the state at t predicts token t.
        lm_head_weight: output embedding; logits = hidden @ lm_head_weight.T.
        token_ids: y, the sampled tokens.
        temperature: \tau > 0, the temperature that the tokens were sampled with.
        chunk_size: number of tokens whose logits exist at the same time, at least 1.

    Returns:
        The same values and gradients as `token_logprobs`.
    """
    return _chunked_head(hidden, lm_head_weight, token_ids, temperature, chunk_size, with_entropy=False)[0]


def chunked_logprobs_and_entropy(
    hidden: Float[Tensor, "B T D"],
    lm_head_weight: Float[Tensor, "V D"],
    token_ids: Int[Tensor, "B T"],
    temperature: float = 1.0,
    chunk_size: int = 256,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Compute `chunked_token_logprobs` and the entropy of Eq. (1.17) in one pass, both with gradient.

    The log-probabilities may differ from those of `chunked_token_logprobs` in their last bits.
    """
    return _chunked_head(hidden, lm_head_weight, token_ids, temperature, chunk_size, with_entropy=True)


def _chunked_head(
    hidden: Tensor, weight: Tensor, token_ids: Tensor, temperature: float, chunk_size: int, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    """Check the arguments, and compute log-probabilities (B, T) and entropies (B, T) by `_ChunkedHead`."""
    check_positive("temperature", temperature)
    check_at_least("chunk_size", chunk_size, 1)
    check_shapes(hidden=(hidden, "B T D"), lm_head_weight=(weight, "V D"), token_ids=(token_ids, "B T"))
    check_dtype("token_ids", token_ids, "int")
    flat_hidden, flat_ids = hidden.reshape(-1, hidden.shape[-1]), token_ids.reshape(-1)
    device_type = hidden.device.type
    dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else weight.dtype
    logp, entropy = _ChunkedHead.apply(flat_hidden, weight, flat_ids, temperature, chunk_size, dtype, with_entropy)
    return logp.view(token_ids.shape), entropy.view(token_ids.shape) if with_entropy else entropy


class _ChunkedHead(torch.autograd.Function):
    """Log-probability and entropy of N tokens, one chunk at a time; backward computes the logits of each chunk again.

    Without entropy, a chunk needs fewer passes over memory, and the entropy is an empty tensor. The precision of the
    products is an argument, `dtype`, since autocast would copy the embedding for each chunk, and is off in backward.
    """

    @staticmethod
    def forward(ctx, hidden, weight, ids, temperature, chunk_size, dtype, with_entropy):
        w = weight.to(dtype)
        values_of_chunks = [(hidden.new_zeros(0), hidden.new_zeros(0))]
        chunk_values = _chunk_logprobs_and_entropy if with_entropy else _chunk_logprobs
        for h, y in zip(hidden.split(chunk_size), ids.split(chunk_size), strict=True):
            values_of_chunks.append(chunk_values(h.to(dtype), w, y, temperature))
        logp, entropy = (torch.cat(values) for values in zip(*values_of_chunks, strict=True))
        ctx.save_for_backward(hidden, weight, ids, entropy)
        ctx.temperature, ctx.chunk_size, ctx.dtype, ctx.with_entropy = temperature, chunk_size, dtype, with_entropy
        return logp, entropy

    @staticmethod
    def backward(ctx, grad_logp, grad_entropy):
        hidden, weight, ids, entropy = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=_at_least_float32_dtype(weight.dtype)) if need_weight else None
        w = weight.to(ctx.dtype)
        for start in range(0, len(hidden), ctx.chunk_size):
            chunk = slice(start, start + ctx.chunk_size)
            h, y = hidden[chunk].to(ctx.dtype), ids[chunk, None]
            if ctx.with_entropy:
                entropy_and_gradients = (entropy[chunk, None], grad_logp[chunk, None], grad_entropy[chunk, None])
                grad_z = _chunk_logprobs_and_entropy_gradient(h, w, y, ctx.temperature, *entropy_and_gradients)
            else:
                grad_z = _chunk_logprobs_gradient(h, w, y, ctx.temperature, grad_logp[chunk, None])
            if grad_hidden is not None:
                grad_hidden[chunk] = grad_z @ w
            if grad_weight is not None:
                _add_product(grad_weight, grad_z.T, h)
            del grad_z  # freed before the next chunk allocates its tensors
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None, None


# The next functions compute one chunk: h are its hidden states (N, D), y its token ids, z its logits over the
# temperature (N, V). At most two float32 tensors of the size of z exist at the same time.


def _chunk_logprobs_and_entropy(h: Tensor, weight: Tensor, y: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_pi = _chunk_logits(h, weight, temperature).log_softmax(-1)  # N V
    return log_pi.gather(-1, y[:, None])[:, 0], -log_pi.exp().mul_(log_pi).sum(-1)


def _chunk_logprobs(h: Tensor, weight: Tensor, y: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    z = _chunk_logits(h, weight, temperature)  # N V
    return z.gather(-1, y[:, None])[:, 0] - z.logsumexp(-1), z.new_zeros(0)


def _chunk_logprobs_and_entropy_gradient(h, weight, y, temperature, entropy, grad_logp, grad_entropy) -> Tensor:
    """Compute the gradient of the logits of a chunk: d logp / dz = onehot - pi,  d H / dz = -pi (log pi + H)."""
    log_pi = _chunk_logits(h, weight, temperature).log_softmax(-1)
    grad_z = log_pi + entropy
    grad_z.mul_(grad_entropy).add_(grad_logp).mul_(log_pi.exp_()).neg_()
    del log_pi
    grad_z.scatter_add_(1, y, grad_logp.to(grad_z.dtype))
    return grad_z.div_(temperature).to(h.dtype)


def _chunk_logprobs_gradient(h, weight, y, temperature, grad_logp) -> Tensor:
    """Compute the gradient of the logits of a chunk if no entropy is needed."""
    # Dividing here takes N divisions; dividing the gradient of z would take N*V.
    grad_logp = (grad_logp / temperature).to(_at_least_float32_dtype(h.dtype))
    grad_z = _chunk_logits(h, weight, temperature).softmax(-1).mul_(-grad_logp)
    return grad_z.scatter_add_(1, y, grad_logp).to(h.dtype)


def _chunk_logits(h: Tensor, weight: Tensor, temperature: float) -> Tensor:
    return _at_least_float32(head_logits(h, weight)).div_(temperature)


def head_logits(h: Float[Tensor, "N D"], weight: Float[Tensor, "V D"]) -> Float[Tensor, "N V"]:
    """Compute `h @ weight.T` without gradient; on a CPU in float32, one block of a large vocabulary at a time.

    A CPU rearranges a matrix in memory before the product. A block that it has rearranged stays in its cache, which
    saves a fifth to a third of the time for 24 to 64 tokens. Whether there are blocks depends only on shape, precision
    and device.
    """
    on_cpu = h.device.type == "cpu" and h.dtype == weight.dtype == torch.float32
    if not on_cpu or len(weight) <= LARGE_VOCABULARY:
        return h @ weight.T
    logits = h.new_empty(len(h), len(weight))
    blocks = zip(weight.split(VOCABULARY_BLOCK), logits.split(VOCABULARY_BLOCK, dim=1), strict=True)
    for block_weight, block_logits in blocks:
        torch.mm(h, block_weight.T, out=block_logits)
    return logits


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add `a @ b` to `total` in place.

    On a CPU, no second tensor of the size of `total` is made, and the product is not rounded to half precision. A GPU
    multiplies in half precision many times faster than in float32, so there the product of one chunk is rounded once.
    """
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        total.add_(a @ b)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _at_least_float32_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(_at_least_float32_dtype(logits.dtype))
