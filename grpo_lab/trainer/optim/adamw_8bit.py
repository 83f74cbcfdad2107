"""AdamW with 8-bit moments, equal to torchao's `AdamW8bit` bit for bit; stochastic rounding of bf16 weights.

The update of torchao is meant to be compiled, which needs a C compiler. Without compilation it launches about 160
kernels for each parameter, and makes float32 copies of a whole parameter: gigabytes for the embedding of Qwen2. This
module concatenates the parameters, updates one piece of bounded size at a time, and finds a code with one search.

It differs from torchao in two ways, on purpose:

- Moments that are not quantised, since their parameter is small or its size is no multiple of 256, are float32. In
  bf16 a second moment could not follow changes of 0.1% per step.
- Stochastic rounding adds its noise to the bits of a weight. torchao compares the noise with them.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from grpo_lab.base.checks import InputError, InputPackageError

PIECE_SIZE = 2**22  # numbers updated at once; float32 copies of them and of their moments take about 0.1 GiB
BLOCK = 256  # numbers that share a scale
MIN_QUANTISED = 4096  # numbers in the smallest parameter that is quantised, as in torchao
EPS = 1e-8  # AdamW's epsilon


class ParameterSlice(NamedTuple):
    """The numbers `start` to `stop - 1` of one flattened parameter."""

    parameter: int  # index in the list of parameters
    start: int
    stop: int


class EightBitAdamW:
    """The AdamW of the precision "bf16", with its moments in 8 bits.

    The state is allocated at once, so that memory does not grow after the first step.

    Args:
        parameters: The parameters to update; each must be contiguous.
        settings: "betas", "weight_decay", and optionally "lr"; `set_lr` sets the learning rate later.
        stochastic_rounding: Whether the updated bf16 weights are rounded stochastically.
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
            for device in {p.device for p in parameters}
        }
        self.moments = [
            self._new_moments(piece, *levels[parameters[piece[0].parameter].device]) for piece in self.pieces
        ]

    def _new_moments(
        self, piece: list[ParameterSlice], signed: "Levels", unsigned: "Levels"
    ) -> tuple["Moment", "Moment"]:
        size = sum(part.stop - part.start for part in piece)
        kind = EightBitMoment if _is_quantised(self.parameters[piece[0].parameter]) else FloatMoment
        return kind(size, signed), kind(size, unsigned)

    def set_lr(self, lr: float) -> None:
        self.lr.fill_(lr)

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for piece, moments in zip(self.pieces, self.moments, strict=True):
            # New views in every step, since parameters and gradients may have been replaced.
            weights = [self.parameters[i].view(-1)[start:stop] for i, start, stop in piece]
            gradients = [_gradient(self.parameters[i]).reshape(-1)[start:stop] for i, start, stop in piece]
            updated = self._updated(_in_float32(weights), _in_float32(gradients), *moments)
            if self.stochastic_rounding and weights[0].dtype == torch.bfloat16:
                updated = stochastic_round_bits(updated)
            sizes = [len(weight) for weight in weights]
            for weight, values in zip(weights, updated.split(sizes), strict=True):
                weight.copy_(values)

    def _updated(self, p: Float[Tensor, " N"], g: Float[Tensor, " N"], mean: "Moment", square: "Moment") -> Tensor:
        """Return the weights after one AdamW update and store the new moments.

        The operations are those of torchao in the same order. At most 28 bytes per number are allocated at a time.
        """
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
            f"{number}.{name}.{suffix}": tensor
            for number, moments in enumerate(self.moments)
            for name, moment in zip(names, moments, strict=True)
            for suffix, tensor in moment.tensors().items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        state = self.tensors()
        if {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in tensors.items()}:
            raise InputError("tensors have other names or shapes; expected those of this optimizer's state")
        for name, tensor in state.items():
            tensor.copy_(tensors[name])


class Levels(NamedTuple):
    """The levels of 8-bit codes, and the limits between them for rounding."""

    table: Float[Tensor, "256"]  # the number that each code represents
    limits: Float[Tensor, "255"]  # the least number that is rounded up to each code but the first

    @classmethod
    def on_device(cls, table: Float[Tensor, "256"], device: torch.device) -> "Levels":
        return cls(table.to(device), rounding_limits(table).to(device))


class EightBitMoment:
    """A moment of N numbers in 8 bits: a code for each number, and a scale for each block."""

    def __init__(self, size: int, levels: Levels):
        self.levels, device = levels, levels.table.device
        self.codes = torch.zeros(size, dtype=torch.uint8, device=device)
        self.scale = torch.zeros(size // BLOCK, device=device)

    def value(self) -> Float[Tensor, " N"]:
        return self.levels.table[self.codes.int()].view(-1, BLOCK).mul_(self.scale[:, None]).view(-1)

    def set(self, value: Float[Tensor, " N"]) -> None:
        """Store the code of the level that is nearest to each number of a block, and the scale of the block."""
        blocks = value.view(-1, BLOCK)
        scale = torch.linalg.vector_norm(blocks, torch.inf, dim=-1).clip_(1e-12)
        self.codes.copy_(nearest_codes(blocks / scale[:, None], self.levels.limits).view(-1))
        self.scale.copy_(scale)

    def tensors(self) -> dict[str, Tensor]:
        return {"codes": self.codes, "scale": self.scale}


class FloatMoment:
    """A moment of N numbers in float32, for parameters that are small or whose size is no multiple of 256."""

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
    """Return, for each code but the first, the least float32 that torchao rounds up to it.

    It is the middle of two levels, or one of the nearest float32 numbers around it.
    """
    low, high = table[:-1], table[1:]
    middle = (low + high) / 2
    neighbours = [middle]
    for _ in range(2):
        neighbours = [neighbours[0].nextafter(low), *neighbours, neighbours[-1].nextafter(high)]
    candidates = torch.stack(neighbours)
    is_rounded_up = candidates - low >= (high - low) * 0.5
    return candidates.gather(0, is_rounded_up.int().argmax(0, keepdim=True))[0]


def nearest_codes(scaled: Float[Tensor, "*N"], limits: Float[Tensor, "255"]) -> UInt8[Tensor, "*N"]:
    """Return the code of the nearest level for each number; the numbers of a block are scaled to at most 1."""
    return torch.bucketize(scaled, limits, out_int32=True, right=True).to(torch.uint8)


def stochastic_round_bits(x: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Round to bf16 stochastically, by adding integer noise to the bits, in fewer kernels than `stochastic_round`.

    For finite numbers the distribution is that of `teaching.rounding.stochastic_round`. A bf16 number is the upper 16
    bits of a float32. Uniform noise below 2^16 is added to the lower 16 bits, so the probability of a carry is their
    value divided by 2^16.
    """
    noise = torch.randint(2**16, x.shape, dtype=torch.int32, device=x.device)
    return noise.add_(x.view(torch.int32)).bitwise_and_(-(2**16)).view(torch.float32).to(torch.bfloat16)


def pieces_of(parameters: list[torch.nn.Parameter]) -> list[list[ParameterSlice]]:
    """Divide the parameters into pieces of at most `PIECE_SIZE` numbers, each a list of slices.

    A large parameter is cut, and small ones share a piece. All slices of a piece have one type and one device, and all
    of them are quantised or none.
    """
    pieces: dict[tuple, list[list[ParameterSlice]]] = {}
    for index, parameter in enumerate(parameters):
        kind = (parameter.dtype, parameter.device, _is_quantised(parameter))
        pieces_of_kind = pieces.setdefault(kind, [[]])
        start = 0
        while start < parameter.numel():
            remaining = PIECE_SIZE - sum(part.stop - part.start for part in pieces_of_kind[-1])
            if remaining == 0:
                pieces_of_kind.append([])
                continue
            stop = min(start + remaining, parameter.numel())
            pieces_of_kind[-1].append(ParameterSlice(index, start, stop))
            start = stop
    return [piece for pieces_of_kind in pieces.values() for piece in pieces_of_kind if piece]


def _is_quantised(parameter: Tensor) -> bool:
    return parameter.numel() >= MIN_QUANTISED and parameter.numel() % BLOCK == 0


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None  # `PolicyOptimizer.step` replaces a missing gradient by zeros
    return parameter.grad


def _in_float32(tensors: list[Tensor]) -> Float[Tensor, " N"]:
    joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return joined.float()


def code_tables() -> tuple[Float[Tensor, "256"], Float[Tensor, "256"]]:
    """Return torchao's 256 levels between -1 and 1, and its 256 levels between 0 and 1."""
    try:
        from torchao.optim.quant_utils import create_dynamic_map
    except ImportError as error:
        raise InputPackageError(
            "precision 'bf16' keeps Adam's moments in 8 bits, with torchao, which can't be imported: "
            "pip install \"grpo-lab[torchao]\". Without it, precision='fp32-master' trains, with 16 bytes per "
            "parameter instead of 6"
        ) from error
    return torch.tensor(create_dynamic_map(signed=True)), torch.tensor(create_dynamic_map(signed=False))
