"""AdamW with moments in 8 bits, torchao's `AdamW8bit` to the bit, in few kernels; stochastic rounding of bf16 weights.

torchao's own update is meant to be compiled, which needs a C compiler; uncompiled it is some 160 kernels for each
parameter, and computes in float32 for a whole parameter at once: gigabytes for Qwen2's embedding. Here parameters are
laid end to end and updated a piece at a time, and a code is looked up with one search. On purpose it departs from
torchao in two things: moments too few to be quantised are float32, since in bf16 a second moment could not follow
changes of 0.1% per step; and the noise that rounds is added to the bits of a weight, not compared with them.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from grpo_lab.base.checks import InputError, InputPackageError

PIECE_SIZE = 2**22  # numbers updated at once; float32 copies of them and of their moments take about 0.1 GiB
BLOCK = 256  # numbers that share a scale
MIN_QUANTISED = 4096  # smaller parameters are not quantised: torchao's own limit
EPS = 1e-8


class Part(NamedTuple):
    """Consecutive numbers of one parameter, all of them or some."""

    parameter: int  # its place in the list of parameters
    start: int
    stop: int


class EightBitAdamW:
    """The AdamW of the mode "bf16". Its state is there from the beginning, so that memory does not grow later.

    settings: "betas", "weight_decay" and, if not set before each step, "lr".
    """

    def __init__(self, parameters: list[torch.nn.Parameter], settings: dict, stochastic_rounding: bool):
        signed, unsigned = code_tables()
        if non_contiguous := [index for index, p in enumerate(parameters) if not p.is_contiguous()]:
            raise InputError(
                f"parameters {non_contiguous} are not contiguous in memory; they must be, to be updated in pieces"
            )
        self.parameters, self.stochastic_rounding = parameters, stochastic_rounding  # [rounding]
        self.betas, self.weight_decay = settings["betas"], settings["weight_decay"]
        self.lr, self.steps = torch.tensor(settings.get("lr", 0.0)), torch.tensor(0.0)
        self.pieces = pieces_of(parameters)
        levels = {
            device: (Levels.on_device(signed, device), Levels.on_device(unsigned, device))
            for device in _devices(parameters)
        }
        self.moments = [
            self._new_moments(piece, *levels[parameters[piece[0].parameter].device]) for piece in self.pieces
        ]

    def _new_moments(self, piece: list[Part], signed: "Levels", unsigned: "Levels") -> tuple["Moment", "Moment"]:
        size = sum(part.stop - part.start for part in piece)
        kind = EightBitMoment if _is_quantised(self.parameters[piece[0].parameter]) else FloatMoment
        return kind(size, signed), kind(size, unsigned)

    def set_lr(self, lr: float) -> None:
        self.lr.fill_(lr)

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for piece, moments in zip(self.pieces, self.moments, strict=True):
            # Views made anew: parameters and gradients may have been replaced.
            weights = [self.parameters[i].view(-1)[start:stop] for i, start, stop in piece]
            gradients = [self.parameters[i].grad.reshape(-1)[start:stop] for i, start, stop in piece]
            updated = self._updated(_in_float32(weights), _in_float32(gradients), *moments)
            if self.stochastic_rounding and weights[0].dtype == torch.bfloat16:
                updated = stochastic_round_bits(updated)
            sizes = [len(part) for part in weights]
            for part, values in zip(weights, updated.split(sizes), strict=True):
                part.copy_(values)

    def _updated(self, p: Float[Tensor, " N"], g: Float[Tensor, " N"], mean: "Moment", square: "Moment") -> Tensor:
        """AdamW, operation by operation as torchao has it; at most 28 bytes per number are alive."""
        beta1, beta2 = self.betas
        m = mean.value().lerp_(g, 1 - beta1)
        mean.set(m)
        v = square.value().lerp_(g.square(), 1 - beta2)
        square.set(v)
        if self.weight_decay:
            p = p - self.lr * self.weight_decay * p
        denominator = v.sqrt_().div_((1 - beta2**self.steps).sqrt()).add_(EPS)
        update = m.div_(1 - beta1**self.steps).mul_(self.lr).div_(denominator)
        return p - update

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        names = ("exp_avg", "exp_avg_sq")
        return {"step": self.steps} | {
            f"{number}.{name}.{part}": tensor
            for number, moments in enumerate(self.moments)
            for name, moment in zip(names, moments, strict=True)
            for part, tensor in moment.tensors().items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        own_tensors = self.tensors()
        if {k: v.shape for k, v in own_tensors.items()} != {k: v.shape for k, v in tensors.items()}:
            raise InputError("tensors have other names or shapes; expected those of this optimizer's state")
        for name, tensor in own_tensors.items():
            tensor.copy_(tensors[name])


class Levels(NamedTuple):
    """The number that each code stands for, and the limit from which on a code is the nearest."""

    table: Float[Tensor, "256"]
    limits: Float[Tensor, "255"]

    @classmethod
    def on_device(cls, table: Float[Tensor, "256"], device: torch.device) -> "Levels":
        return cls(table.to(device), rounding_limits(table).to(device))


class EightBitMoment:
    """N numbers in 8 bits: a code each, and a scale for each block."""

    def __init__(self, size: int, levels: Levels):
        self.levels, device = levels, levels.table.device
        self.codes = torch.zeros(size, dtype=torch.uint8, device=device)
        self.scale = torch.zeros(size // BLOCK, device=device)

    def value(self) -> Float[Tensor, " N"]:
        return self.levels.table[self.codes.int()].view(-1, BLOCK).mul_(self.scale[:, None]).view(-1)

    def set(self, value: Float[Tensor, " N"]) -> None:
        """Keep these numbers, each as the nearest level of its block."""
        blocks = value.view(-1, BLOCK)
        scale = torch.linalg.vector_norm(blocks, torch.inf, dim=-1).clip_(1e-12)
        self.codes.copy_(nearest_codes(blocks / scale[:, None], self.levels.limits).view(-1))
        self.scale.copy_(scale)

    def tensors(self) -> dict[str, Tensor]:
        return {"codes": self.codes, "scale": self.scale}


class FloatMoment:
    """N numbers as they are, being few."""

    def __init__(self, size: int, levels: Levels):
        self.values = torch.zeros(size, device=levels.table.device)

    def value(self) -> Float[Tensor, " N"]:
        return self.values.clone()

    def set(self, value: Float[Tensor, " N"]) -> None:
        self.values.copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values}


Moment = EightBitMoment | FloatMoment


def rounding_limits(table: Float[Tensor, "256"]) -> Float[Tensor, "255"]:
    """The least float32 that torchao rounds up to each code but the first: the middle of two levels, or next to it."""
    low, high = table[:-1], table[1:]
    middle = (low + high) / 2
    neighbours = [middle]
    for _ in range(2):
        neighbours = [neighbours[0].nextafter(low), *neighbours, neighbours[-1].nextafter(high)]
    candidates = torch.stack(neighbours)
    is_rounded_up = candidates - low >= (high - low) * 0.5
    return candidates.gather(0, is_rounded_up.int().argmax(0, keepdim=True))[0]


def nearest_codes(scaled: Float[Tensor, "*N"], limits: Float[Tensor, "255"]) -> UInt8[Tensor, "*N"]:
    """The code of the level that is nearest to each number of a block whose largest is 1."""
    return torch.bucketize(scaled, limits, out_int32=True, right=True).to(torch.uint8)


def stochastic_round_bits(x: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Round like `stochastic_round` of config/precision.py, with integer noise added to the bits.

    The distribution is the same for finite numbers, in fewer kernels. A bf16 is the upper 16 bits of a float32; noise
    below 2^16 is added to the lower 16, and carries over as often as they say.
    """
    noise = torch.randint(2**16, x.shape, dtype=torch.int32, device=x.device)
    return noise.add_(x.view(torch.int32)).bitwise_and_(-(2**16)).view(torch.float32).to(torch.bfloat16)


def pieces_of(parameters: list[torch.nn.Parameter]) -> list[list[Part]]:
    """All numbers of the parameters in pieces of at most `PIECE_SIZE`: large parameters divided, small ones together.

    A piece is of one type and one device, and quantised or not as a whole.
    """
    pieces: dict[tuple, list[list[Part]]] = {}
    for index, parameter in enumerate(parameters):
        kind = (parameter.dtype, parameter.device, _is_quantised(parameter))
        same_kind = pieces.setdefault(kind, [[]])
        start = 0
        while start < parameter.numel():
            remaining = PIECE_SIZE - sum(part.stop - part.start for part in same_kind[-1])
            if remaining == 0:
                same_kind.append([])
                continue
            stop = min(start + remaining, parameter.numel())
            same_kind[-1].append(Part(index, start, stop))
            start = stop
    return [piece for same_kind in pieces.values() for piece in same_kind if piece]


def _is_quantised(parameter: Tensor) -> bool:
    return parameter.numel() >= MIN_QUANTISED and parameter.numel() % BLOCK == 0


def _devices(parameters: list[torch.nn.Parameter]) -> set[torch.device]:
    return {parameter.device for parameter in parameters}


def _in_float32(parts: list[Tensor]) -> Float[Tensor, " N"]:
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).float()


def code_tables() -> tuple[Float[Tensor, "256"], Float[Tensor, "256"]]:
    """The 256 levels that a code may mean, between -1 and 1 and between 0 and 1: torchao's."""
    try:
        from torchao.optim.quant_utils import create_dynamic_map
    except ImportError as error:
        raise InputPackageError(
            "precision 'bf16' keeps Adam's moments in 8 bits, with torchao, which can't be imported: "
            "pip install \"grpo-lab[torchao]\". Without it, precision='fp32-master' trains, with 16 bytes per "
            "parameter instead of 6"
        ) from error
    return torch.tensor(create_dynamic_map(signed=True)), torch.tensor(create_dynamic_map(signed=False))
