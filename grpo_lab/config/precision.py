r"""The precision of full-parameter training: five precisions, and how updated weights are rounded.

A bf16 number keeps 8 significant bits. At a learning rate of 1e-6 most of Adam's updates are smaller than half the
distance to the next bf16 number, so rounding to the nearest undoes them. There are two remedies: keep the weights in
float32, or use stochastic rounding, which rounds up or down so that the mean is right. The precision `bf16-naive` has
neither; it exists for a lesson.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.base.origin import origin_of
from grpo_lab.base.renamed import warn_renamed


@dataclass(frozen=True)
class Precision:
    """A precision of full-parameter training: the types of weights, arithmetic and moments, and the rounding."""

    name: str
    weights: torch.dtype  # type of the weights and of their gradients
    autocast: torch.dtype | None = None  # type of the arithmetic in forward and backward; None: that of the weights
    optimizer: str = "adamw"  # "adamw" of torch or "adamw8bit" of torchao
    stochastic_rounding: bool = False  # whether updated weights are rounded stochastically
    loss_scaling: bool = False  # whether the loss is scaled up for the backward pass, since the range of fp16 is narrow

    def __str__(self) -> str:
        arithmetic = f", {dtype_name(self.autocast)} arithmetic" if self.autocast else ""
        rounding = ", 8-bit AdamW, stochastic rounding" if self.stochastic_rounding else ", AdamW"
        description = f"{self.name} ({dtype_name(self.weights)} weights{arithmetic}{rounding})"
        return self.name if self.name == "fp32" else description


# The comments give the bytes per parameter: weight, gradient and the two moments of Adam.
PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp32", torch.float32),  # 16 bytes: for the CPU and for small models
        Precision("fp32-master", torch.float32, autocast=torch.bfloat16),  # 16 bytes, and bf16 copies during a pass
        Precision("bf16", torch.bfloat16, optimizer="adamw8bit", stochastic_rounding=True),  # 6 bytes
        Precision("bf16-naive", torch.bfloat16),  # 8 bytes, but most updates are lost
        Precision("fp16", torch.float32, autocast=torch.float16, loss_scaling=True),  # 16 bytes: for GPUs without bf16
    )
}


# The precisions for a GPU, by whether it has bf16 in hardware; the most exact one first.
GPU_PRECISIONS = {True: ("fp32-master", "bf16"), False: ("fp16",)}


def possible_precisions(
    device: torch.device | None,
    requested: str | None = None,
    exact_only: bool = False,
    *,
    small: bool | None = None,
) -> tuple[str, ...]:
    """Return the names of the precisions that a model can be loaded in, the most exact first.

    Callers choose among them as follows. `memory.choose_candidate` knows the free memory and takes the first that fits.
    An engine's `precision`, for adapters and for TRL's loop, takes the first. `pick_precision` takes the last, which
    needs the least memory.

    Args:
        device: The device of the model. None: a GPU of another machine, which has bf16.
        requested: The precision that the user asks for, which is then the only one. None: there is no request.
        exact_only: Whether to allow only "fp32" unless another one is requested. Callers set it for small models,
            for which rounding saves little memory: `load_policy` by the bytes of the weight files, the
            commands by the number of parameters.
        small: Deprecated: the name of `exact_only` before 1.0.0.

    Raises:
        ValueError: if the requested precision is not in `PRECISIONS`.
    """
    if small is not None:
        warn_renamed("the argument small", "exact_only")
        exact_only = small
    if requested is not None:
        check_choice("precision", requested, PRECISIONS)
        return (requested,)
    if exact_only or (device is not None and device.type != "cuda"):
        return ("fp32",)
    return GPU_PRECISIONS[device is None or has_native_bf16(device)]


def pick_precision(
    device: torch.device, precision: str | None = None, exact_only: bool = False, *, small: bool | None = None
) -> Precision:
    """Return the precision with the least memory: "bf16" on a GPU with bf16, "fp16" on other GPUs, "fp32" elsewhere.

    Args:
        device: The device of the model.
        precision: The name of the precision to return. None: the precision is chosen.
        exact_only: Whether to return "fp32" on a GPU as well if no precision is asked for.
        small: Deprecated: the name of `exact_only` before 1.0.0.
    """
    if small is not None:
        warn_renamed("the argument small", "exact_only")
        exact_only = small
    return PRECISIONS[possible_precisions(device, precision, exact_only)[-1]]


@runtime_checkable
class PrecisionSettings(Protocol):
    """The settings by which a `GRPOConfig` requests a precision (`GRPOConfig` imports this module, not the reverse)."""

    @property
    def precision(self) -> str | None: ...

    @property
    def bf16(self) -> bool: ...

    @property
    def requested_precision(self) -> str | None: ...


def precision_of(model, config: PrecisionSettings | None = None) -> Precision:
    """Return the precision in which a loaded model trains and computes.

    The configuration decides (`precision`, or TRL's flags bf16 and fp16). If it names none, the precision is that for
    which `load_policy` loaded the model. If the model was loaded otherwise, its weights decide: bf16 weights train as
    "bf16", float32 and float64 weights as "fp32". The flag bf16 also accepts bf16 weights, which then train as "bf16";
    `precision="fp32-master"`, which the flag stands for otherwise, refuses them.

    Args:
        model: The loaded model.
        config: A `GRPOConfig`. None: nothing is trained, and weights of any type are accepted.

    Raises:
        ValueError: if the type of the weights does not fit the precision, or cannot be trained.
    """
    weights = model.dtype if config is None else _trainable_dtype(model)
    requested = None if config is None else config.requested_precision
    loaded_for = PRECISIONS.get(origin_of(model).precision or "")
    if requested is None and loaded_for is not None and loaded_for.weights == weights:
        return loaded_for
    if requested is None and weights not in (torch.float32, torch.bfloat16):
        return replace(PRECISIONS["fp32"], weights=weights)
    accepts_bf16_weights = config is not None and config.precision is None and config.bf16 and weights == torch.bfloat16
    if config is None or requested is None or accepts_bf16_weights:
        return PRECISIONS["bf16" if weights == torch.bfloat16 else "fp32"]  # [rounding]
    if weights != PRECISIONS[requested].weights:
        problem = f"precision is {requested!r}" if config.precision else f"{'bf16' if config.bf16 else 'fp16'} is True"
        problem += f", which trains {PRECISIONS[requested].weights} weights, but the model's are {weights}"
        raise InputError(f"{problem}; load it with load_policy(..., precision={requested!r})")
    return PRECISIONS[requested]


def autocast(model, config: PrecisionSettings | None = None) -> torch.autocast:
    """Return the autocast context of `precision_of(model, config)`; disabled if the precision has no autocast type."""
    dtype = precision_of(model, config).autocast
    return torch.autocast(model.device.type, dtype=dtype, enabled=dtype is not None)


def has_native_bf16(device: torch.device) -> bool:
    """Return True for a GPU with bf16 in hardware; older GPUs such as the T4 emulate it, correctly but slowly."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def slow_here(device: torch.device, precision: Precision) -> str | None:
    """Return a warning if the precision computes in bf16 and the device is a CPU without bf16, else None."""
    has_bf16 = any("bf16" in name and is_available for name, is_available in torch.cpu.get_capabilities().items())
    if device.type != "cpu" or has_bf16 or torch.bfloat16 not in (precision.weights, precision.autocast):
        return None
    return f"this CPU has no bf16, so {precision.name} is several times slower than fp32"


def dtype_name(dtype: torch.dtype) -> str:
    """Return the short name of a type, such as "bf16" for torch.bfloat16."""
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}[dtype]


def stochastic_round(x: Float[Tensor, "*S"], noise: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    r"""Round float32 to bf16 stochastically: up or down, so that the mean over the noise is the number itself.

    If x is not 0, x_0 is the nearest bf16 number between 0 and x, and x_1 is the next bf16 number away from zero.

    x_0 = \operatorname{sgn}(x) \max \{ b \in \mathrm{bf16} : b \le |x| \}  \tag{8.2}
    x_1 = \operatorname{sgn}(x) \min \{ b \in \mathrm{bf16} : b > |x_0| \}  \tag{8.3}
    p = \frac{x - x_0}{x_1 - x_0}                                           \tag{8.4}
    \tilde x = x_1 \text{ if } u < p \text{ else } x_0                      \tag{8.5}

    A bf16 number is the upper half of a float32 number. So x_0 is x without its 16 lower bits, and x_1 adds one to the
    upper half. x.view(torch.int32) returns the bits as integers to calculate with, and .view(torch.float32) converts
    them back. p is a multiple of 2^{-16} and is computed exactly: E[x~] = x without any error, up to the largest bf16
    number.

    Args:
        x: The numbers to round, in float32.
        noise: u, uniform in [0, 1): one number for each number of x, such as `torch.rand_like(x)`.

    Returns:
        The rounded numbers in bf16. Infinities and NaN stay; a finite number beyond the largest bf16 number becomes the
        largest one.

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
    r"""Compute the share of the intended movement that weights have made after each of several steps in one direction.

    While its gradient stays the same, Adam moves a weight by about the learning rate at each step. The moved weight is
    rounded to the numbers of the mode: `round` does nothing for "fp32", rounds to the nearest bf16 number for
    "bf16-naive", and is Eq. (8.5) with new noise at each step for "bf16".

    w_{t} = \operatorname{round}(w_{t-1} - \eta)                                  \tag{8.6}
    \text{share}_t = \frac{1}{n} \sum_{i=1}^{n} \frac{w_{0,i} - w_{t,i}}{t \, \eta} \tag{8.7}

    Args:
        weights: The n weights before the first step; they are rounded to bf16 first, so that all modes start equal.
        learning_rate: \eta, the distance that a weight should move at each step.
        steps: Number of steps.
        mode: "fp32", "bf16-naive" or "bf16".
        seed: Seed of the noise.
    """
    # The offset keeps the noise independent of weights that were drawn with the same small seed.
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
