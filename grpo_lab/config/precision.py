"""The precisions of full-parameter training, the choice of one, and the precision and folder recorded on a model.

Before a model is loaded, `possible_precisions` chooses by its device and number of parameters. Afterwards
`precision_of` returns the precision by the model and its configuration.

Updates that are smaller than half the spacing of bf16 numbers are lost if the weights are rounded to the nearest
(`grpo_lab.teaching.rounding`). There are two remedies: keep the weights in float32, or round stochastically. The
precision `bf16-naive` has neither; it exists for a lesson.

A model keeps the precision for which it was loaded, with the name of its folder, in its `Origin`. transformers' models
have no place for it, so one attribute of ours is set on the object. A deep copy has it as well.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch

from grpo_lab.base.checks import InputError, check_choice
from grpo_lab.config.defaults import is_tiny

_ORIGIN_ATTRIBUTE = "grpo_lab_origin"


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
    device: torch.device | None, num_parameters: int, requested: str | None = None
) -> tuple[str, ...]:
    """Return the names of the precisions that a model can be loaded in, the most exact first.

    This is the only rule for a model that is not loaded yet. Callers choose among the names as follows.
    `memory.choose_candidate` knows the free memory and takes the first that fits. An engine's `loading_precision`, for
    adapters and for TRL's loop, takes the first. `load_policy` takes the last, which needs the least memory.

    Args:
        device: The device of the model. None: a GPU of another machine, which has bf16.
        num_parameters: Number of parameters of the model. A tiny model (`is_tiny`) has only "fp32", since rounding
            would save it little memory.
        requested: The precision that the user asks for, which is then the only one. None: there is no request.

    Raises:
        ValueError: if the requested precision is not in `PRECISIONS`.
    """
    if requested is not None:
        check_choice("precision", requested, PRECISIONS)
        return (requested,)
    if is_tiny(num_parameters) or (device is not None and device.type != "cuda"):
        return ("fp32",)
    return GPU_PRECISIONS[device is None or has_native_bf16(device)]


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
    if requested is None:
        loaded_for = PRECISIONS.get(origin_of(model).precision or "")
        if loaded_for is not None and loaded_for.weights == weights:
            return loaded_for
        if weights not in (torch.float32, torch.bfloat16):
            return replace(PRECISIONS["fp32"], weights=weights)
    accepts_bf16_weights = config is not None and config.precision is None and config.bf16 and weights == torch.bfloat16
    if config is None or requested is None or accepts_bf16_weights:
        return PRECISIONS["bf16" if weights == torch.bfloat16 else "fp32"]  # [rounding]
    if weights != PRECISIONS[requested].weights:
        problem = f"precision is {requested!r}" if config.precision else f"{'bf16' if config.bf16 else 'fp16'} is True"
        problem += f", which trains {PRECISIONS[requested].weights} weights, but the model's are {weights}"
        raise InputError(f"{problem}; load it with load_policy(..., precision={requested!r})")
    return PRECISIONS[requested]


def _trainable_dtype(model) -> torch.dtype:
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64, torch.bfloat16}:
        raise InputError(
            f"model has weights of {', '.join(sorted(map(str, dtypes)))}; expected torch.float32, torch.bfloat16 or "
            "torch.float64 (float16 is too narrow to train: load it with precision='fp16')"
        )
    return dtypes.pop()


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


def bf16_warning(device: torch.device, precision: Precision) -> str | None:
    """Return a warning if the precision computes in bf16, which is slow, on a CPU without bf16; else None."""
    has_bf16 = any("bf16" in name and is_available for name, is_available in torch.cpu.get_capabilities().items())
    if device.type != "cpu" or has_bf16 or torch.bfloat16 not in (precision.weights, precision.autocast):
        return None
    return f"this CPU has no bf16, so {precision.name} is several times slower than fp32"


def dtype_name(dtype: torch.dtype) -> str:
    """Return the short name of a type, such as "bf16" for torch.bfloat16."""
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}[dtype]


@dataclass(frozen=True)
class Origin:
    """How and from where a model was loaded.

    Args:
        precision: The precision in which the model is to be trained, a name in `PRECISIONS`. None: its weights decide.
        name: The hub id of the model, or the absolute path of its folder. None: its `name_or_path` holds.
        merged_adapter: The folder of the LoRA adapter that was merged into its weights. None: no adapter was merged.
    """

    precision: str | None = None
    name: str | None = None
    merged_adapter: str | None = None


def origin_of(model: Any) -> Origin:
    """Return the origin of a model; all its fields are None for a model that `load_policy` has not loaded."""
    return getattr(model, _ORIGIN_ATTRIBUTE, Origin())


def set_origin(model: Any, **changes: str | None) -> None:
    """Change fields of the origin of a model, given as keyword arguments; the other fields stay."""
    setattr(model, _ORIGIN_ATTRIBUTE, replace(origin_of(model), **changes))
