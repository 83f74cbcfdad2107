r"""Sampler and trainer on different machines: weights of old answers, and the price of waiting.

Axes: I completions in a queue; B of a batch, of T tokens; R samplers, each with a replica of the model and S rows.
"""

import heapq
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import check_at_least, check_choice, check_dtype, check_positive, check_shapes

LEVELS, MODES = ("token", "sequence"), ("truncate", "mask")


class Gpu(NamedTuple):
    """Peaks of a GPU per second: operations in bf16, bytes of its memory."""

    flops: float = 989e12  # NVIDIA, H100 SXM data sheet: half of what it gives with sparsity
    memory: float = 3.35e12  # the same


H100 = Gpu()


class Replica(NamedTuple):
    """One copy of a model: its parameters, the bytes of one token in its KV cache, the GPUs that share it."""

    parameters: float
    cache_bytes: float
    gpus: int


def straggler_bubble(lengths: Int[Tensor, " I"], slots: int) -> float:
    r"""The fraction of all slots' time that passes empty, from the first token of a batch to its last.

    Each completion, in the order given, goes to the slot that is free first; u says how long each has been busy.

    u_s \leftarrow u_s + n_i, \quad s = \arg\min u \tag{10.2}
    h = 1 - \frac{\sum_i n_i}{S \max_s u_s} \tag{10.1}

    Args:
        lengths: n, tokens of each completion, at least 1. slots: S, rows that are sampled at the same time.
    """
    check_shapes(lengths=(lengths, "I>0"))
    check_at_least("slots", slots, 1)
    check_at_least("lengths.min()", int(lengths.min()), 1)
    busy = [0] * slots
    for length in lengths.tolist():
        done = heapq.heappop(busy) + length  # scalar (10.2)
        heapq.heappush(busy, done)
    bubble = 1 - int(lengths.sum()) / (slots * max(busy))  # scalar (10.1)
    return bubble


def decoding_seconds(
    lengths: Int[Tensor, "R S"], prompt: int, parameters: float, cache_bytes: float, gpus: int = 1, gpu: Gpu = H100
) -> Float[Tensor, " R"]:
    r"""How long each of R samplers takes for its S rows, begun together, if its GPUs reach their peaks.

    S_t = |\{ i : n_i \ge t \}| \tag{10.3}
    Q_t = 2 K + q \, S_t \, (L + t) \tag{10.4}
    \tau = \sum_t \max \Big( \frac{2 K S_t}{c F}, \frac{Q_t}{c M} \Big) \tag{10.5}

    At token t, S_t rows are still written. Q_t bytes are read: all weights (2 bytes each), and the cache of these rows.
    The sum ends with the longest row.

    Args:
        lengths: n_i, tokens of each completion. prompt: L, those of a prompt.
        parameters: K. cache_bytes: q, of one token, as `grpo_lab.memory.parts.cache_bytes` counts them.
        gpus: c, that share one replica of the model (tensor parallel); gpu: with F operations and M bytes per second.
    """
    check_shapes(lengths=(lengths, "R S"))
    t = torch.arange(1, int(lengths.max()) + 1).expand(len(lengths), -1).contiguous()
    writing = lengths.shape[1] - torch.searchsorted(lengths.sort(-1).values, t)  # R T (10.3)
    read = 2 * parameters * (writing > 0) + cache_bytes * writing * (prompt + t)  # R T (10.4)
    arithmetic = 2.0 * parameters * writing / (gpus * gpu.flops)
    seconds = torch.maximum(arithmetic, read / (gpus * gpu.memory)).sum(-1)  # R (10.5)
    return seconds


def answer_ages(lengths: Int[Tensor, " I"], slots: int, batch: int, group: int = 1) -> Int[Tensor, " I"]:
    r"""How many updates old each completion is when the trainer learns from it, if the sampler never waits.

    Slots are filled as in Eq. (10.2). Completion i begins at x; the last one of its group ends at e. In the order of e,
    `batch` completions make an update: so the version of the weights counts the batches that are complete.

    v_i = \lfloor |\{ j : e_j \le x_i \}| / B \rfloor \tag{10.6}
    a_i = \lfloor |\{ j : j \prec i \}| / B \rfloor - v_i \tag{10.7}

    Here j \prec i says that e_j is before e_i. Of equal ends, the one given first counts as earlier.

    Args:
        lengths: n, tokens of each completion, at least 1, in the order in which they begin.
        slots: S, rows that are sampled at the same time. batch: B, completions of an update.
        group: completions of one prompt, given one after the other; it divides I.

    Returns:
        a, of the first token, in updates, which take no time. Over many, with a group of 1, the mean is near S / B.
    """
    check_shapes(lengths=(lengths, "I>0"))
    check_at_least("slots", slots, 1)
    check_at_least("batch", batch, 1)
    check_at_least("lengths.min()", int(lengths.min()), 1)
    check_choice("group", group, [size for size in range(1, len(lengths) + 1) if len(lengths) % size == 0])
    free, begins = [0] * slots, []
    for length in lengths.tolist():
        begins.append(free[0])
        heapq.heapreplace(free, free[0] + length)
    begin = torch.tensor(begins)
    end = (begin + lengths).view(-1, group).amax(-1).repeat_interleave(group)  # I
    order = end.argsort(stable=True)
    version = torch.searchsorted(end[order], begin, right=True) // batch  # I (10.6)
    age = order.argsort() // batch - version  # I (10.7)
    return age


def importance_weights(
    logp: Float[Tensor, "B T"], sampler_logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], level: str = "token"
) -> Float[Tensor, "B #T"]:
    r"""How much likelier the trainer finds what was sampled than the sampler did.

    d_{b,t} = m_{b,t} \, (\ell_{b,t} - \ell^{\mathrm{sampler}}_{b,t}) \tag{10.10}
    w_{b,t} = \mathrm{sg} \big[ e^{d_{b,t}} \big] \tag{10.9}
    w_b = \mathrm{sg} \big[ e^{\sum_t d_{b,t}} \big] \tag{10.11}

    Args:
        logp: log-probabilities under the policy that is trained, before its update.
        sampler_logp: of the same tokens, as the sampler recorded them.
        mask: m, True where a token belongs to its completion. What stands elsewhere means nothing; the weight is 1.
        level: "token" for weights of tokens, shape (B, T); "sequence" for one of each completion, shape (B, 1).

    Returns:
        w, without gradient. It multiplies each token's term of the loss.

    Source: TRL 1.16, `vllm_importance_sampling_mode`.
    """
    check_choice("level", level, LEVELS)
    check_shapes(logp=(logp, "B T"), sampler_logp=(sampler_logp, "B T"), mask=(mask, "B T"))
    check_dtype("mask", mask, "bool")
    difference = torch.where(mask, logp - sampler_logp, 0)  # B T (10.10)
    if level == "token":
        return difference.exp().detach()  # B T (10.9)
    return difference.sum(-1, keepdim=True).exp().detach()  # B 1 (10.11)


def truncate_weights(weights: Float[Tensor, "B #T"], cap: float = 3.0, mode: str = "truncate") -> Float[Tensor, "B #T"]:
    r"""Let no weight be above a cap.

    w'_{b,t} = \min(w_{b,t}, w_{\max}) \tag{10.12}
    w''_{b,t} = w_{b,t} \, \mathbb{1}[w_{b,t} \le w_{\max}] \tag{10.13}

    Args:
        weights: w, not negative; it may be infinite, so take torch.where in Eq. (10.13): infinity times 0 is NaN.
        cap: w_max > 0.
        mode: "truncate" for w'; "mask" for w'', which leaves out what the other would cut.

    Source: Ionides (2008), "Truncated Importance Sampling", for w'. The cap of 3 is TRL 1.16's.
    """
    check_choice("mode", mode, MODES)
    check_positive("cap", cap)
    if mode == "truncate":
        return weights.clamp(max=cap)  # B T (10.12)
    return torch.where(weights <= cap, weights, 0)  # B T (10.13)


def step_flops(parameters: float, tokens: float, readings: int = 1, checkpointing: bool = True) -> dict[str, float]:
    r"""Floating-point operations of a step of GRPO; those of attention, which grow with the length, are left out.

    C_{\mathrm{sample}} = 2 K N \tag{10.14}
    C_{\mathrm{logprobs}} = 2 K N k \tag{10.15}
    C_{\mathrm{update}} = (6 + 2 x) \, K N \tag{10.16}

    Args:
        parameters: K, that a token meets. tokens: N, of prompts and completions.
        readings: k, passes that only compute log-probabilities: the policy's before its updates, the reference's.
        checkpointing: x, whether the update computes its forward pass twice.

    Source: Kaplan et al. (2020), "Scaling Laws for Neural Language Models", section 2.1.
    """
    sample = 2 * parameters * tokens  # scalar (10.14)
    logprobs = 2 * parameters * tokens * readings  # scalar (10.15)
    update = (6 + 2 * checkpointing) * parameters * tokens  # scalar (10.16)
    return {"sample": sample, "logprobs": logprobs, "update": update}


def answer_lengths(count: int, mean: float, longest: int, spread: float = 1.0) -> Int[Tensor, " I"]:
    """Draw log-normal lengths, cut at the longest, whose mean after the cut is the one given."""
    shape, low, high = torch.exp(spread * torch.randn(count)), 1.0, 10.0 * longest
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if (middle * shape).clamp(1, longest).mean() < mean else (low, middle)
    return (low * shape).clamp(1, longest).round().long()


def peak_seconds(
    replica: Replica, gpus: int, lengths: Int[Tensor, " I"], prompt: int, gpu: Gpu = H100
) -> tuple[float, float]:
    """Seconds of sampling, and of learning, of a synchronous step in which all GPUs reach their peaks.

    The completions are divided among the replicas in the order given; sampling ends with the slowest replica, and
    learning is divided evenly among the GPUs.
    """
    rows = lengths.view(gpus // replica.gpus, -1)
    sampling = decoding_seconds(rows, prompt, *replica, gpu=gpu).max().item()
    tokens = float(lengths.sum()) + prompt * len(lengths)
    flops = step_flops(replica.parameters, tokens)
    return sampling, (flops["logprobs"] + flops["update"]) / (gpus * gpu.flops)
