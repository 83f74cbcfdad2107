"""torchao's AdamW8bit, given large parameters in pieces: moments in 8 bits, bf16 weights rounded up or down by chance.

`AdamW8bit(model.parameters())` would compute in float32, for a whole parameter at once; for the 136 million numbers of
Qwen2's embedding that would be gigabytes at the peak of memory, so it gets pieces of `PIECE` numbers. Where this
departs from it, on purpose: moments too few to be quantised are float32. In bf16, torchao's choice for them, a second
moment could not follow changes of 0.1% a step.

torchao compiles the update when it is first made. That needs an NVIDIA card, triton and a C compiler; where it fails,
the same update runs uncompiled, with the same result up to rounding and other noise.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable

import torch

PIECE = 2**22  # numbers updated at once; uncompiled, float32 copies of them and of their moments take about 0.2 GiB
BLOCK = 256  # numbers that share a scale
LONGEST = 200  # letters of a compiler's complaint
FEWEST = 4096  # smaller parameters are not quantised: torchao's own limit


class EightBitAdamW:
    """The AdamW of the mode "bf16". Its state is there from the beginning, so that memory does not grow later."""

    def __init__(self, parameters: list[torch.nn.Parameter], settings: dict, stochastic_rounding: bool):
        adamw, quantised = _torchao()
        if odd := [index for index, p in enumerate(parameters) if not p.is_contiguous()]:
            raise ValueError(f"parameters {odd} are not contiguous in memory; they must be, to be updated in pieces")
        self.parameters = parameters
        self.pieces = [_cut(p.detach()) for p in parameters]
        flat = [piece for pieces in self.pieces for piece in pieces]
        make = functools.partial(adamw, **settings, bf16_stochastic_round=stochastic_rounding)
        self.adamw = make(flat)
        for parameter, pieces in zip(parameters, self.pieces, strict=True):
            kind = quantised if parameter.numel() >= FEWEST and parameter.numel() % BLOCK == 0 else None
            for piece in pieces:
                moments = {"exp_avg": _zeros(piece, kind, True), "exp_avg_sq": _zeros(piece, kind, False)}
                self.adamw.state[piece] = {"step": torch.tensor(0.0)} | moments
        self.compiles = _on_card(parameters[0].device) and _update_compiles(parameters[0].device, make)

    def set_lr(self, lr: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"].fill_(lr)  # a tensor: another number would be another program to compile

    def step(self) -> None:
        """The pieces are views of the parameters and of their gradients, made anew: either may have been replaced."""
        for parameter, pieces in zip(self.parameters, self.pieces, strict=True):
            for piece, weights, gradient in zip(pieces, _cut(parameter.detach()), _cut(parameter.grad), strict=True):
                piece.data, piece.grad = weights, gradient
        _update(self.adamw, self.compiles)
        for pieces in self.pieces:
            for piece in pieces:
                piece.grad = None  # a view would keep the whole gradient in memory

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            f"{number}.{piece}.{name}": tensor
            for number, pieces in enumerate(self.pieces)
            for piece, weights in enumerate(pieces)
            for name, tensor in _flat(self.adamw.state[weights]).items()
        }

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        mine = self.tensors()
        if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in tensors.items()}:
            raise ValueError("tensors have other names or shapes; expected those of this optimizer's state")
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])


def _zeros(piece: torch.Tensor, quantised: type | None, signed: bool) -> torch.Tensor:
    if quantised is None:
        return torch.zeros_like(piece, dtype=torch.float32)
    return quantised.zeros(piece.shape, signed, BLOCK, piece.device, dtype=piece.dtype)


def _cut(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tensor.reshape(-1).split(PIECE)


def _flat(state: dict) -> dict[str, torch.Tensor]:
    """The state of one piece, its quantised moments as the codes and scales that they consist of."""
    flat = {}
    for name, value in state.items():
        parts = ("codes", "scale") if hasattr(value, "codes") else ()
        flat |= {f"{name}.{part}": getattr(value, part) for part in parts} or {name: value}
    return flat


def _torchao():
    try:
        from torchao.optim import AdamW8bit
        from torchao.optim.subclass_8bit import OptimState8bit
    except ImportError as error:
        raise ImportError(
            "precision 'bf16' keeps Adam's moments in 8 bits, with torchao, which can't be imported: pip install "
            "torchao. Without it, precision='fp32-master' trains, with 16 bytes a parameter instead of 6"
        ) from error
    return AdamW8bit, OptimState8bit


def _update(adamw, compiled: bool) -> None:
    with contextlib.ExitStack() as stack:
        if not compiled:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(warnings.catch_warnings())
        # torch's advice to torchao's authors, about a cache of compiled programs.
        warnings.filterwarnings("ignore", message="OptimState8bit does not implement _stable_hash_for_caching")
        adamw.step()


def _on_card(device: torch.device) -> bool:
    """Elsewhere, compiling would take longer than it saves."""
    return device.type == "cuda"


def _update_compiles(device: torch.device, make: Callable) -> bool:
    """Whether the compiled update works, tried on a parameter of its own, so that no real update fails half-way."""
    trial = torch.nn.Parameter(torch.zeros(FEWEST, dtype=torch.bfloat16, device=device))
    trial.grad = torch.zeros_like(trial)
    try:
        _update(make([trial]), compiled=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of torch, of triton, of a compiler
        inner = getattr(error, "inner_exception", None) or error
        said = next(iter(str(inner).strip().splitlines()), "")
        cause = f"{type(inner).__name__}: {said}"[:LONGEST].rstrip(": ")
        _say(f"optimizer: its update can't be compiled ({cause}); it runs uncompiled, and a step takes longer")
        return False
    return True


_say = functools.cache(print)  # what was said once is not said again
