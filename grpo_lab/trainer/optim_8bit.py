"""torchao's AdamW8bit, given large parameters in pieces: moments in 8 bits, bf16 weights rounded up or down by chance.

`AdamW8bit(model.parameters())` would compute in float32 for a whole parameter at once: gigabytes for Qwen2's embedding.
So it gets pieces. Where this departs from it, on purpose: moments too few to be quantised are float32, since in bf16
a second moment could not follow changes of 0.1% a step; and the update is not compiled, which would need a C compiler.
"""

import torch

from grpo_lab.base.checks import InputError, InputPackageError

PIECE = 2**22  # numbers updated at once; float32 copies of them and of their moments take about 0.2 GiB
BLOCK = 256  # numbers that share a scale
FEWEST = 4096  # smaller parameters are not quantised: torchao's own limit


class EightBitAdamW:
    """The AdamW of the mode "bf16". Its state is there from the beginning, so that memory does not grow later."""

    def __init__(self, parameters: list[torch.nn.Parameter], settings: dict, stochastic_rounding: bool):
        adamw, quantised = _torchao()
        if odd := [index for index, p in enumerate(parameters) if not p.is_contiguous()]:
            raise InputError(f"parameters {odd} are not contiguous in memory; they must be, to be updated in pieces")
        self.parameters = parameters
        self.pieces = [_cut(p.detach()) for p in parameters]
        flat = [piece for pieces in self.pieces for piece in pieces]
        self.adamw = adamw(flat, **settings, bf16_stochastic_round=stochastic_rounding)
        for parameter, pieces in zip(parameters, self.pieces, strict=True):
            kind = quantised if parameter.numel() >= FEWEST and parameter.numel() % BLOCK == 0 else None
            for piece in pieces:
                moments = {"exp_avg": _zeros(piece, kind, True), "exp_avg_sq": _zeros(piece, kind, False)}
                self.adamw.state[piece] = {"step": torch.tensor(0.0)} | moments

    def set_lr(self, lr: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"].fill_(lr)

    def step(self) -> None:
        """The pieces are views of the parameters and of their gradients, made anew: either may have been replaced."""
        for parameter, pieces in zip(self.parameters, self.pieces, strict=True):
            for piece, weights, gradient in zip(pieces, _cut(parameter.detach()), _cut(parameter.grad), strict=True):
                piece.data, piece.grad = weights, gradient
        with torch.compiler.set_stance("force_eager"):
            self.adamw.step()
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
            raise InputError("tensors have other names or shapes; expected those of this optimizer's state")
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
        raise InputPackageError(
            "precision 'bf16' keeps Adam's moments in 8 bits, with torchao, which can't be imported: pip install "
            "\"grpo-lab[torchao]\". Without it, precision='fp32-master' trains, with 16 bytes a parameter instead of 6"
        ) from error
    return AdamW8bit, OptimState8bit
