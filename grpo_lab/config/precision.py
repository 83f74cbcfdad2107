r"""The precision of full-parameter training: five modes, one name each, and the rounding that decides what arrives.

A bf16 number keeps 8 significant bits. At a learning rate of 1e-6 most of Adam's updates are smaller than half the
distance to the next such number, and rounding to the nearest undoes them. Two ways out: keep the weights in float32,
or use stochastic rounding, up or down so that the mean is right. `bf16-naive` does neither: it is a lesson.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.base.checks import InputError, check_choice


@dataclass(frozen=True)
class Precision:
    """A way to train all parameters. Bytes a parameter: weight + gradient + Adam's two moments."""

    name: str
    weights: torch.dtype  # of the weights, and so of their gradients
    autocast: torch.dtype | None = None  # of the arithmetic of forward and backward, where it is not the weights'
    optimizer: str = "adamw"  # torch's "adamw", or torchao's "adamw8bit"
    stochastic_rounding: bool = False  # of the updated weights
    loss_scaling: bool = False  # fp16's range is narrow: gradients are scaled up, and down again before the update

    def __str__(self) -> str:
        arithmetic = f", {short_name(self.autocast)} arithmetic" if self.autocast else ""
        rounding = ", 8-bit AdamW, stochastic rounding" if self.stochastic_rounding else ", AdamW"
        description = f"{self.name} ({short_name(self.weights)} weights{arithmetic}{rounding})"
        return self.name if self.name == "fp32" else description


PRECISIONS = {
    mode.name: mode
    for mode in (
        Precision("fp32", torch.float32),  # 16 bytes: the CPU, and models too small for rounding to save anything
        Precision("fp32-master", torch.float32, autocast=torch.bfloat16),  # 16 bytes, and bf16 copies while it computes
        Precision("bf16", torch.bfloat16, optimizer="adamw8bit", stochastic_rounding=True),  # 6 bytes
        Precision("bf16-naive", torch.bfloat16),  # 8 bytes, and most of the training is lost
        Precision("fp16", torch.float32, autocast=torch.float16, loss_scaling=True),  # 16 bytes: GPUs without bf16
    )
}


MODES = {True: ("fp32-master", "bf16"), False: ("fp16",)}  # for a GPU with bf16 in hardware, and for one without


def possible_precisions(
    device: torch.device | None, requested: str | None = None, small: bool = False
) -> tuple[str, ...]:
    """The modes to choose from before a model is loaded, the most exact first; a requested one stands alone.

    Whoever knows how much memory is free takes the first that fits (`memory.choice`), adapters and TRL's loop the first
    (`precision` of an engine), and whoever knows nothing the last, which takes least (`pick_precision`).

    device: None for a GPU elsewhere, which has bf16. small: a model for which rounding costs more than it saves.

    Raises:
        ValueError: for a requested mode that is not in `PRECISIONS`.
    """
    if requested is not None:
        check_choice("precision", requested, PRECISIONS)
        return (requested,)
    if small or (device is not None and device.type != "cuda"):
        return ("fp32",)
    return MODES[device is None or has_native_bf16(device)]


def pick_precision(device: torch.device, precision: str | None = None, small: bool = False) -> Precision:
    """The possible mode that takes least memory: "bf16" on a GPU that has it, "fp16" on another, "fp32" elsewhere."""
    return PRECISIONS[possible_precisions(device, precision, small)[-1]]


def precision_of(model, config=None) -> Precision:
    """The mode in which a loaded model trains and computes: what was chosen before it was loaded, read off the model.

    It is the one that the configuration names (`precision`, or TRL's flags bf16 and fp16), else the one for which
    `load_policy` loaded the model, else what the weights allow: bf16 weights train as "bf16", float32 (and float64)
    ones as "fp32".

    config: a `GRPOConfig`; None where nothing is trained, so that weights of any dtype will do.

    Raises:
        ValueError: for weights of another dtype than the mode needs, or that cannot be trained.
    """
    weights = model.dtype if config is None else _trainable_dtype(model)
    requested = None if config is None else config.requested_precision
    loaded_for = PRECISIONS.get(getattr(model, "loaded_for", None) or "")
    if requested is None and loaded_for is not None and loaded_for.weights == weights:
        return loaded_for
    if requested is None and weights not in (torch.float32, torch.bfloat16):
        return replace(PRECISIONS["fp32"], weights=weights)
    if requested is None or (config.precision is None and config.bf16 and weights == torch.bfloat16):
        return PRECISIONS["bf16" if weights == torch.bfloat16 else "fp32"]  # [rounding]
    if weights != PRECISIONS[requested].weights:
        problem = f"precision is {requested!r}" if config.precision else f"{'bf16' if config.bf16 else 'fp16'} is True"
        problem += f", which trains {PRECISIONS[requested].weights} weights, but the model's are {weights}"
        raise InputError(f"{problem}; load it with load_policy(..., precision={requested!r})")
    return PRECISIONS[requested]


def autocast(model, config=None) -> torch.autocast:
    """A context in which the arithmetic of `precision_of(model, config)` is done; none where it is the weights' own."""
    dtype = precision_of(model, config).autocast
    return torch.autocast(model.device.type, dtype=dtype, enabled=dtype is not None)


def has_native_bf16(device: torch.device) -> bool:
    """True where bf16 runs on the hardware. Older GPUs such as the T4 emulate it, correctly but slowly."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def slow_here(device: torch.device, precision: Precision) -> str | None:
    """A warning about a mode that computes in bf16 on a CPU that has none; else None."""
    has_bf16 = any("bf16" in name and is_available for name, is_available in torch.cpu.get_capabilities().items())
    if device.type != "cpu" or has_bf16 or torch.bfloat16 not in (precision.weights, precision.autocast):
        return None
    return f"this CPU has no bf16, so {precision.name} is several times slower than fp32"


def short_name(dtype: torch.dtype) -> str:
    """ "bf16" for torch.bfloat16, and so on."""
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}[dtype]


def stochastic_round(x: Float[Tensor, "*S"], noise: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    r"""Stochastic rounding of float32 to bf16: up or down, so that the mean over the noise is the number itself.

    Where x is not 0, x_0 is the bf16 number next to x towards zero, and x_1 the one next to x_0 away from zero.

    x_0 = \operatorname{sgn}(x) \max \{ b \in \mathrm{bf16} : b \le |x| \}  \tag{8.2}
    x_1 = \operatorname{sgn}(x) \min \{ b \in \mathrm{bf16} : b > |x_0| \}  \tag{8.3}
    p = \frac{x - x_0}{x_1 - x_0}                                           \tag{8.4}
    \tilde x = x_1 \text{ if } u < p \text{ else } x_0                      \tag{8.5}

    A bf16 number is the upper half of a float32 number, so x_0 is x without its 16 lower bits, and x_1 is one step of
    the upper half further: x.view(torch.int32) shows the bits, as whole numbers to calculate with, and
    .view(torch.float32) turns them back. p is a multiple of 2^{-16} and computed exactly: E[x~] = x without any
    error, up to bf16's largest number.

    Args:
        x: float32.
        noise: u, uniform in [0, 1): one number for each of x, such as `torch.rand_like(x)`.

    Returns:
        bf16. Infinities and NaN stay; a number beyond the largest of bf16 becomes that one.

    Raises:
        ValueError: if x is not float32.

    Source: Gupta et al. (2015), "Deep learning with limited numerical precision", section 3.1.
    """
    if x.dtype != torch.float32:
        raise InputError(f"x is {x.dtype}; expected torch.float32")
    x_0 = (x.view(torch.int32) & -(2**16)).view(torch.float32)  # S (8.2)
    x_1 = (x_0.view(torch.int32) + 2**16).view(torch.float32)  # S (8.3)
    p = (x - x_0) / (x_1 - x_0)  # S (8.4)
    rounded = torch.where(noise < p, x_1, x_0)  # S (8.5)
    return torch.where(x.isfinite(), rounded, x).bfloat16()


def realised_share(
    weights: Float[Tensor, "*S"], learning_rate: float, steps: int, mode: str, seed: int = 0
) -> Float[Tensor, " steps"]:
    r"""How much of the intended movement arrives, after each of so many steps that all go in the same direction.

    While its gradient stays the same, Adam moves a weight by about the learning rate at each step. The result is kept
    in the mode's numbers: `round` does nothing in float32, goes to the nearest in naive bf16, and is Eq. (8.5) with
    fresh noise in bf16.

    w_{t} = \operatorname{round}(w_{t-1} - \eta)                                  \tag{8.6}
    \text{share}_t = \frac{1}{n} \sum_{i=1}^{n} \frac{w_{0,i} - w_{t,i}}{t \, \eta} \tag{8.7}

    weights: n, where they start; rounded to bf16 first, so that all modes start alike.
    """
    # Far from the seeds that people give: noise from the stream that drew the weights would not be independent of them.
    generator = torch.Generator().manual_seed(987_654_321 + seed)
    rounding = {
        "fp32": lambda w: w,
        "bf16-naive": lambda w: w.bfloat16().float(),
        "bf16": lambda w: stochastic_round(w, torch.rand(w.shape, generator=generator)).float(),
    }
    check_choice("mode", mode, rounding)
    start = weights.bfloat16().double()
    w, shares = start.float(), []
    for t in range(1, steps + 1):
        w = rounding[mode](w - learning_rate)  # S (8.6)
        share = ((start - w) / (t * learning_rate)).mean()  # scalar (8.7)
        shares.append(share)
    return torch.stack(shares)


def _trainable_dtype(model) -> torch.dtype:
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64, torch.bfloat16}:
        raise InputError(
            f"model has weights of {', '.join(sorted(map(str, dtypes)))}; expected torch.float32, torch.bfloat16 or "
            "torch.float64 (float16 is too narrow to train: load it with precision='fp16')"
        )
    return dtypes.pop()
