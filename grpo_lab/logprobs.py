"""The formulas of the log-probabilities of sampled tokens, of the entropy, and of the completion mask.

They start from logits or hidden states; `rollout/forward/model_logprobs.py` gets these from a model.

Axes: B rows, T completion tokens, V vocabulary, D hidden width. Where this departs from the usual code, on purpose: the
temperature is part of the log-probability (a policy sampled at temperature 0.7 *is* another policy), and half-precision
logits are lifted to float32 before the softmax.

A ValueError names an argument that has not the shape, or is not in the range, that the function states.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputError, check_at_least, check_dtype, check_positive, check_shapes

LARGE_VOCABULARY = 4096  # tokens; the head of a larger one is multiplied block by block on a CPU
VOCABULARY_BLOCK = 1024


def token_logprobs(
    logits: Float[Tensor, "B T V"], token_ids: Int[Tensor, "B T"], temperature: float = 1.0
) -> Float[Tensor, "B T"]:
    r"""Log-probability of each sampled token under the policy at this temperature.

    z_{b,t,v} = \frac{\ell_{b,t,v}}{\tau} \tag{1.15}
    \log \pi_{b,t} = z_{b,t,y_{b,t}} - \log \sum_v e^{z_{b,t,v}} \tag{1.2}

    Args:
        logits: \ell, of any size, and e^1000 is infinite in floating point. Minus infinity for a word that is ruled
            out. The logits at position t already predict token t: shift them before you call.
        token_ids: y, the sampled tokens.
        temperature: \tau > 0, the temperature that the tokens were sampled with.

    Returns:
        In nats, at most 0; minus infinity for a token that was ruled out.

    Source: softmax with temperature; Sutton and Barto, "Reinforcement Learning", section 13.1.
    """
    check_positive("temperature", temperature)
    check_shapes(logits=(logits, "B T V"), token_ids=(token_ids, "B T"))
    check_dtype("token_ids", token_ids, "int")
    z = _at_least_float32(logits) / temperature  # B T V (1.15)
    logp = z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)  # B T (1.2)
    return logp


def token_entropy(logits: Float[Tensor, "B T V"], temperature: float = 1.0) -> Float[Tensor, "B T"]:
    r"""Entropy of the policy's distribution over the vocabulary at each position.

    \log \pi_{b,t,v} = z_{b,t,v} - \log \sum_{w} e^{z_{b,t,w}}, \quad z = \ell / \tau \tag{1.16}
    H_{b,t} = -\sum_v \pi_{b,t,v} \log \pi_{b,t,v} \tag{1.17}

    Args:
        logits: \ell, finite, of any size, and e^1000 is infinite in floating point. A word whose probability is zero
            there adds zero to the entropy and to its gradient.
        temperature: \tau > 0.

    Returns:
        In nats, between 0 and log V.

    Source: Shannon (1948).
    """
    check_positive("temperature", temperature)
    check_shapes(logits=(logits, "B T V"))
    logp = (_at_least_float32(logits) / temperature).log_softmax(-1)  # B T V (1.16)
    entropy = -(logp.exp() * logp).sum(-1)  # B T (1.17)
    return entropy


def completion_mask(completion_ids: Int[Tensor, "B T"], eos_token_id: int | list[int]) -> Bool[Tensor, "B T"]:
    r"""Mask of the positions that belong to the completion, its end token included.

    n_{b,t} = \sum_{t' < t} \mathbb{1}[y_{b,t'} = \text{eos}] \tag{1.13}
    m_{b,t} = \mathbb{1}[n_{b,t} = 0] \tag{1.14}

    The first end token belongs to the completion: the policy chose to stop there, so it has to count. Whatever
    follows it does not. The mask goes by position, so it holds when the padding token *is* the end token.

    Args:
        completion_ids: y, the tokens after the prompt.
        eos_token_id: the end token, or a list of several; the first of any of them ends the completion.

    Returns:
        True up to and with the first end token; all True in a row that was cut off before its end.
    """
    check_shapes(completion_ids=(completion_ids, "B T"))
    check_dtype("completion_ids", completion_ids, "int")
    if eos_token_id is None:
        raise InputError("eos_token_id is None; expected an end token, or a list of them")
    ends = torch.tensor(eos_token_id, device=completion_ids.device).reshape(-1)
    is_end = torch.isin(completion_ids, ends).long()
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

    The logits of `chunk_size` tokens exist at a time, in the forward and again in the backward pass, so the memory
    needed beside the result and the gradients does not grow with B*T.

    Args:
        hidden: last hidden states; the state at t predicts token t.
        lm_head_weight: output embedding; logits = hidden @ lm_head_weight.T.
        token_ids, temperature: as in `token_logprobs`.
        chunk_size: tokens whose logits exist at the same time, at least 1.

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
    """Compute `chunked_token_logprobs` and the entropy of Eq. (1.17) in one pass, both differentiable."""
    return _chunked_head(hidden, lm_head_weight, token_ids, temperature, chunk_size, with_entropy=True)


def _chunked_head(hidden, weight, token_ids, temperature, chunk_size, with_entropy):
    check_positive("temperature", temperature)
    check_at_least("chunk_size", chunk_size, 1)
    check_shapes(hidden=(hidden, "B T D"), lm_head_weight=(weight, "V D"), token_ids=(token_ids, "B T"))
    check_dtype("token_ids", token_ids, "int")
    rows, ids = hidden.reshape(-1, hidden.shape[-1]), token_ids.reshape(-1)
    device_type = rows.device.type
    dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else weight.dtype
    logp, entropy = _ChunkedHead.apply(rows, weight, ids, temperature, chunk_size, dtype, with_entropy)
    return logp.view(token_ids.shape), entropy.view(token_ids.shape) if with_entropy else None


class _ChunkedHead(torch.autograd.Function):
    """Log-probability and entropy of N tokens, a chunk at a time; backward computes each chunk's logits again.

    Without entropy a chunk passes memory fewer times, and an empty tensor stands in its place. Autocast would copy the
    embedding anew for each chunk, and is off in backward: hence a dtype of the products here.
    """

    @staticmethod
    def forward(ctx, rows, weight, ids, temperature, chunk_size, dtype, with_entropy):
        w, parts = weight.to(dtype), [(rows.new_zeros(0), rows.new_zeros(0))]
        chunk_values = _chunk_values if with_entropy else _chunk_logprobs
        for h, y in zip(rows.split(chunk_size), ids.split(chunk_size), strict=True):
            parts.append(chunk_values(h.to(dtype), w, y, temperature))
        logp, entropy = (torch.cat(values) for values in zip(*parts, strict=True))
        ctx.save_for_backward(rows, weight, ids, entropy)
        ctx.temperature, ctx.chunk_size, ctx.dtype, ctx.with_entropy = temperature, chunk_size, dtype, with_entropy
        return logp, entropy

    @staticmethod
    def backward(ctx, grad_logp, grad_entropy):
        rows, weight, ids, entropy = ctx.saved_tensors
        need_rows, need_weight = ctx.needs_input_grad[:2]
        grad_rows = torch.zeros_like(rows) if need_rows else None
        grad_weight = torch.zeros_like(weight, dtype=_wide(weight.dtype)) if need_weight else None
        w = weight.to(ctx.dtype)
        for start in range(0, len(rows), ctx.chunk_size):
            part = slice(start, start + ctx.chunk_size)
            h, y = rows[part].to(ctx.dtype), ids[part, None]
            if ctx.with_entropy:
                per_token = (entropy[part, None], grad_logp[part, None], grad_entropy[part, None])
                grad_z = _chunk_gradient(h, w, y, ctx.temperature, *per_token)
            else:
                grad_z = _chunk_logprobs_gradient(h, w, y, ctx.temperature, grad_logp[part, None])
            if grad_rows is not None:
                grad_rows[part] = grad_z @ w
            if grad_weight is not None:
                _add_product(grad_weight, grad_z.T, h)
            del grad_z  # or it would stand beside all that the next chunk makes
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_rows, grad_weight, None, None, None, None, None


# Two tensors of a chunk's logits in float32 are alive at a time, never three.


def _chunk_values(h: Tensor, weight: Tensor, y: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_pi = _chunk_logits(h, weight, temperature).log_softmax(-1)  # N V
    return log_pi.gather(-1, y[:, None])[:, 0], -log_pi.exp().mul_(log_pi).sum(-1)


def _chunk_logprobs(h: Tensor, weight: Tensor, y: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    z = _chunk_logits(h, weight, temperature)  # N V
    return z.gather(-1, y[:, None])[:, 0] - z.logsumexp(-1), z.new_zeros(0)


def _chunk_gradient(h, weight, y, temperature, entropy, grad_logp, grad_entropy) -> Tensor:
    """The gradient of the logits: d logp / dz = onehot - pi,  d H / dz = -pi (log pi + H)."""
    log_pi = _chunk_logits(h, weight, temperature).log_softmax(-1)
    grad_z = log_pi + entropy
    grad_z.mul_(grad_entropy).add_(grad_logp).mul_(log_pi.exp_()).neg_()
    del log_pi
    grad_z.scatter_add_(1, y, grad_logp.to(grad_z.dtype))
    return grad_z.div_(temperature).to(h.dtype)


def _chunk_logprobs_gradient(h, weight, y, temperature, grad_logp) -> Tensor:
    """The gradient of the logits without that of an entropy; the temperature divides N numbers, not N V."""
    grad_logp = (grad_logp / temperature).to(_wide(h.dtype))
    grad_z = _chunk_logits(h, weight, temperature).softmax(-1).mul_(-grad_logp)
    return grad_z.scatter_add_(1, y, grad_logp).to(h.dtype)


def _chunk_logits(h: Tensor, weight: Tensor, temperature: float) -> Tensor:
    return _at_least_float32(head_logits(h, weight)).div_(temperature)


def head_logits(h: Float[Tensor, "N D"], weight: Float[Tensor, "V D"]) -> Float[Tensor, "N V"]:
    """`h @ weight.T`, without gradient; on a CPU in float32 a block of a large vocabulary at a time.

    What a CPU lays out anew for its product then stays in its cache, which saves a fifth to a third of the time of 24
    to 64 tokens. The way depends on shape, precision and device alone.
    """
    on_cpu = h.device.type == "cpu" and h.dtype == weight.dtype == torch.float32
    if not on_cpu or len(weight) <= LARGE_VOCABULARY:
        return h @ weight.T
    logits = h.new_empty(len(h), len(weight))
    for block, part in zip(weight.split(VOCABULARY_BLOCK), logits.split(VOCABULARY_BLOCK, dim=1), strict=True):
        torch.mm(h, block.T, out=part)
    return logits


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b. On the CPU with no second tensor of total's size, and no rounding to half precision on the way.

    A GPU multiplies half precision many times faster than float32, so there the product of one chunk is rounded once.
    """
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        total.add_(a @ b)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(_wide(logits.dtype))
