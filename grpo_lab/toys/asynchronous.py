r"""Sampling and training on different machines: idle time, staleness of completions, and importance weights.

Axes: I completions in a queue; B completions of a batch, with T tokens; R samplers, each with a replica of the model
and S slots, which are rows that it samples at the same time.
"""

import heapq
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import check_at_least, check_choice, check_dtype, check_positive, check_shapes
from grpo_lab.objective import IMPORTANCE_SAMPLING_LEVELS

CAP_MODES = ("truncate", "mask")  # a weight above the cap is lowered to it, or its token is left out


class Gpu(NamedTuple):
    """Peak performance of a GPU, by default an H100 SXM.

    Attributes:
        flops: Floating-point operations per second in bf16.
        memory_bandwidth: Memory bandwidth, in bytes per second.
    """

    # Source: NVIDIA's data sheet of the H100 SXM. It gives the operations with sparsity; without it they are half.
    flops: float = 989e12
    memory_bandwidth: float = 3.35e12


H100 = Gpu()


class Replica(NamedTuple):
    """One copy of a model, which may be distributed over several GPUs.

    Attributes:
        num_parameters: Number of parameters.
        cache_bytes: Bytes that one token takes in the KV cache.
        num_gpus: Number of GPUs that share the copy.
    """

    num_parameters: float
    cache_bytes: float
    num_gpus: int


def straggler_bubble(lengths: Int[Tensor, " I"], slots: int) -> float:
    r"""Compute the fraction of the slots' time that is idle while a batch is sampled.

    The completions are taken in the given order, and each goes to the slot that is free first. u_s is the time at which
    slot s has finished its completions, counted in tokens. The batch is finished at the largest of these times.

    u_s \leftarrow u_s + n_i, \quad s = \arg\min u \tag{10.2}
    h = 1 - \frac{\sum_i n_i}{S \max_s u_s} \tag{10.1}

    Args:
        lengths: n, the number of tokens of each completion, at least 1.
        slots: S, the number of rows that are sampled at the same time.

    Returns:
        h, from 0 to 1.
    """
    check_shapes(lengths=(lengths, "I>0"))
    check_at_least("slots", slots, 1)
    check_at_least("lengths.min()", int(lengths.min()), 1)
    finish_times = [0] * slots
    for length in lengths.tolist():
        finished = heapq.heappop(finish_times) + length  # scalar (10.2)
        heapq.heappush(finish_times, finished)
    bubble = 1 - int(lengths.sum()) / (slots * max(finish_times))  # scalar (10.1)
    return bubble


def decoding_seconds(
    lengths: Int[Tensor, "R S"],
    prompt_length: int,
    num_parameters: float,
    cache_bytes: float,
    num_gpus: int = 1,
    gpu: Gpu = H100,
) -> Float[Tensor, " R"]:
    r"""Compute the seconds that each of R samplers needs for S rows that start together, if its GPUs reach their peaks.

    S_t = |\{ i : n_i \ge t \}| \tag{10.3}
    Q_t = 2 K + q \, S_t \, (L + t) \tag{10.4}
    \tau = \sum_t \max \Big( \frac{2 K S_t}{c F}, \frac{Q_t}{c M} \Big) \tag{10.5}

    S_t is the number of rows that are still being sampled at token t. Q_t is the number of bytes that are read for it:
    all weights, with 2 bytes each, and the KV cache of these rows. The sum ends with the last token of the longest row.

    Args:
        lengths: n_i, the number of tokens of each completion.
        prompt_length: L, the number of tokens of a prompt.
        num_parameters: K, the number of parameters of the model.
        cache_bytes: q, the bytes that one token takes in the KV cache (`grpo_lab.memory.formulas.cache_bytes`).
        num_gpus: c, the number of GPUs that share one replica of the model (tensor parallel).
        gpu: The GPU, with F operations and M bytes of memory traffic per second.

    Returns:
        \tau, in seconds.
    """
    check_shapes(lengths=(lengths, "R S"))
    t = torch.arange(1, int(lengths.max()) + 1).expand(len(lengths), -1).contiguous()
    active_rows = lengths.shape[1] - torch.searchsorted(lengths.sort(-1).values, t)  # R T (10.3)
    bytes_read = 2 * num_parameters * (active_rows > 0) + cache_bytes * active_rows * (prompt_length + t)  # R T (10.4)
    arithmetic_seconds = 2.0 * num_parameters * active_rows / (num_gpus * gpu.flops)
    seconds = torch.maximum(arithmetic_seconds, bytes_read / (num_gpus * gpu.memory_bandwidth)).sum(-1)  # R (10.5)
    return seconds


def completion_staleness(lengths: Int[Tensor, " I"], slots: int, batch: int, group: int = 1) -> Int[Tensor, " I"]:
    r"""Compute the staleness of each completion in updates when the trainer uses it, if the sampler never waits.

    The slots are filled as in Eq. (10.2). Completion i begins at time x_i, and e_i is the time at which the last
    completion of its group ends; a completion can be used only then. In the order of e, every B completions make one
    update, and an update takes no time. So v_i, the version of the weights with which completion i begins, is the
    number of batches that are complete at x_i. Its staleness a_i is the number of updates between this version and the
    update that uses it.

    v_i = \lfloor |\{ j : e_j \le x_i \}| / B \rfloor \tag{10.6}
    a_i = \lfloor |\{ j : j \prec i \}| / B \rfloor - v_i \tag{10.7}

    Here j \prec i means that completion j comes before completion i in the order of e. Of completions with equal e, the
    one given first comes first.

    Args:
        lengths: n, the number of tokens of each completion, at least 1, in the order in which the completions begin.
        slots: S, the number of rows that are sampled at the same time.
        batch: B, the number of completions of an update.
        group: Number of completions of a prompt, which are adjacent in `lengths`. It has to divide I.

    Returns:
        a, the staleness of the first token of each completion. For many completions and a group of 1, the mean is near
        S / B.
    """
    check_shapes(lengths=(lengths, "I>0"))
    check_at_least("slots", slots, 1)
    check_at_least("batch", batch, 1)
    check_at_least("lengths.min()", int(lengths.min()), 1)
    check_choice("group", group, [size for size in range(1, len(lengths) + 1) if len(lengths) % size == 0])
    finish_times, begins = [0] * slots, []
    for length in lengths.tolist():
        begins.append(finish_times[0])
        heapq.heapreplace(finish_times, finish_times[0] + length)
    begin = torch.tensor(begins)
    end = (begin + lengths).view(-1, group).amax(-1).repeat_interleave(group)  # I
    order = end.argsort(stable=True)
    version = torch.searchsorted(end[order], begin, right=True) // batch  # I (10.6)
    staleness = order.argsort() // batch - version  # I (10.7)
    return staleness


def importance_weights(
    logp: Float[Tensor, "B T"], sampler_logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], level: str = "token"
) -> Float[Tensor, "B #T"]:
    r"""Compute the importance weights of sampled tokens: their probability in the trainer over that in the sampler.

    d_{b,t} = m_{b,t} \, (\ell_{b,t} - \ell^{\mathrm{sampler}}_{b,t}) \tag{10.10}
    w_{b,t} = \mathrm{sg} \big[ e^{d_{b,t}} \big] \tag{10.9}
    w_b = \mathrm{sg} \big[ e^{\sum_t d_{b,t}} \big] \tag{10.11}

    Args:
        logp: \ell, the log-probabilities of the tokens under the policy that is trained, before its update.
        sampler_logp: Their log-probabilities as the sampler recorded them.
        mask: m, True at the tokens of a completion. Values at other positions are ignored.
        level: "token" for a weight of each token, shape (B, T); "sequence" for one weight of each completion, (B, 1).

    Returns:
        w, without gradient, by which each token's term of the loss is multiplied. The weights of tokens are 1 where the
        mask is False.

    Source: TRL 1.16, `vllm_importance_sampling_mode`.
    """
    check_choice("level", level, IMPORTANCE_SAMPLING_LEVELS)
    check_shapes(logp=(logp, "B T"), sampler_logp=(sampler_logp, "B T"), mask=(mask, "B T"))
    check_dtype("mask", mask, "bool")
    difference = torch.where(mask, logp - sampler_logp, 0)  # B T (10.10)
    if level == "token":
        return difference.exp().detach()  # B T (10.9)
    return difference.sum(-1, keepdim=True).exp().detach()  # B 1 (10.11)


def truncate_weights(weights: Float[Tensor, "B #T"], cap: float = 3.0, mode: str = "truncate") -> Float[Tensor, "B #T"]:
    r"""Limit importance weights to a cap, by truncating or by masking larger ones.

    w'_{b,t} = \min(w_{b,t}, w_{\max}) \tag{10.12}
    w''_{b,t} = w_{b,t} \, \mathbb{1}[w_{b,t} \le w_{\max}] \tag{10.13}

    Args:
        weights: w, at least 0. A weight may be infinite; then the product in Eq. (10.13) would be NaN, so torch.where
            is used instead.
        cap: w_max, above 0.
        mode: "truncate" for w', which replaces larger weights by the cap; "mask" for w'', which replaces them by 0.

    Source: Ionides (2008), "Truncated Importance Sampling", for w'. The cap of 3 is TRL 1.16's.
    """
    check_choice("mode", mode, CAP_MODES)
    check_positive("cap", cap)
    if mode == "truncate":
        return weights.clamp(max=cap)  # B T (10.12)
    return torch.where(weights <= cap, weights, 0)  # B T (10.13)


def step_flops(
    num_parameters: float, tokens: float, logprob_passes: int = 1, checkpointing: bool = True
) -> dict[str, float]:
    r"""Count the floating-point operations of a GRPO step, without those of attention, which grow with the length.

    C_{\mathrm{sample}} = 2 K N \tag{10.14}
    C_{\mathrm{logprobs}} = 2 K N k \tag{10.15}
    C_{\mathrm{update}} = (6 + 2 x) \, K N \tag{10.16}

    Args:
        num_parameters: K, the number of parameters that are used for a token.
        tokens: N, the number of tokens of all prompts and completions.
        logprob_passes: k, the number of forward passes that only compute log-probabilities, such as those of the old
            policy and of the reference.
        checkpointing: x, whether gradient checkpointing computes the forward pass of the update a second time.

    Returns:
        The operations of the three phases, under the keys "sample", "logprobs" and "update".

    Source: Kaplan et al. (2020), "Scaling Laws for Neural Language Models", section 2.1.
    """
    sample = 2 * num_parameters * tokens  # scalar (10.14)
    logprobs = 2 * num_parameters * tokens * logprob_passes  # scalar (10.15)
    update = (6 + 2 * checkpointing) * num_parameters * tokens  # scalar (10.16)
    return {"sample": sample, "logprobs": logprobs, "update": update}


def completion_lengths(count: int, mean: float, longest: int, spread: float = 1.0) -> Int[Tensor, " I"]:
    """Draw log-normal lengths of completions, limited to the range from 1 to `longest`, with a given mean.

    Args:
        count: I, the number of completions.
        mean: Mean of the lengths after they are limited, from 1 to `longest`; they are rounded after that.
        longest: Largest length, in tokens.
        spread: Standard deviation of the logarithm of the lengths before they are limited.
    """
    relative_lengths = torch.exp(spread * torch.randn(count))
    low, high = 0.0, 10.0 * longest  # range of the factor that gives the mean, found by bisection
    for _ in range(50):
        middle = (low + high) / 2
        if (middle * relative_lengths).clamp(1, longest).mean() < mean:
            low = middle
        else:
            high = middle
    return (low * relative_lengths).clamp(1, longest).round().long()


def peak_seconds(
    replica: Replica, num_gpus: int, lengths: Int[Tensor, " I"], prompt_length: int, gpu: Gpu = H100
) -> tuple[float, float]:
    """Compute the seconds of sampling and of training in a synchronous step, if all GPUs reach their peaks.

    The completions are divided evenly among the replicas in the given order. Sampling ends with the slowest replica;
    the training is divided evenly among the GPUs.

    Args:
        num_gpus: Number of GPUs of all replicas together.
        lengths: Number of tokens of each completion.
        prompt_length: Number of tokens of a prompt.

    Returns:
        The seconds of sampling, and those of the log-probabilities and the update together.
    """
    rows = lengths.view(num_gpus // replica.num_gpus, -1)
    sampling = decoding_seconds(rows, prompt_length, **replica._asdict(), gpu=gpu).max().item()
    tokens = float(lengths.sum()) + prompt_length * len(lengths)
    flops = step_flops(replica.num_parameters, tokens)
    return sampling, (flops["logprobs"] + flops["update"]) / (num_gpus * gpu.flops)
