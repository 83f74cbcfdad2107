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
MIN_QUANTISED_SIZE = 4096  # numbers in the smallest parameter that is quantised, as in torchao
EPS = 1e-8  # AdamW's epsilon


class ParameterSlice(NamedTuple):
    """The numbers `start` to `stop - 1` of one flattened parameter."""

    parameter_index: int  # index in the list of parameters
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
        signed_levels, unsigned_levels = torchao_levels()
        if non_contiguous := [index for index, p in enumerate(parameters) if not p.is_contiguous()]:
            raise InputError(
                f"parameters {non_contiguous} are not contiguous in memory; they must be, to be updated in pieces"
            )
        self.parameters, self.stochastic_rounding = parameters, stochastic_rounding  # [rounding]
        self.betas, self.weight_decay = settings["betas"], settings["weight_decay"]
        self.lr, self.num_steps = torch.tensor(settings.get("lr", 0.0)), torch.tensor(0.0)
        self.pieces = divide_into_pieces(parameters)
        codebooks = {
            device: (Codebook.on_device(signed_levels, device), Codebook.on_device(unsigned_levels, device))
            for device in {p.device for p in parameters}
        }
        self.moments = [
            self._new_moments(piece, *codebooks[parameters[piece[0].parameter_index].device]) for piece in self.pieces
        ]

    def _new_moments(
        self, piece: list[ParameterSlice], signed: "Codebook", unsigned: "Codebook"
    ) -> tuple["Moment", "Moment"]:
        size = sum(part.stop - part.start for part in piece)
        moment_class = EightBitMoment if _is_quantised(self.parameters[piece[0].parameter_index]) else FloatMoment
        return moment_class(size, signed), moment_class(size, unsigned)

    def set_lr(self, lr: float) -> None:
        self.lr.fill_(lr)

    @torch.no_grad()
    def step(self) -> None:
        self.num_steps += 1
        for piece, moments in zip(self.pieces, self.moments, strict=True):
            # New views in every step, since parameters and gradients may have been replaced.
            weights = [self.parameters[i].view(-1)[start:stop] for i, start, stop in piece]
            gradients = [_gradient(self.parameters[i]).reshape(-1)[start:stop] for i, start, stop in piece]
            updated = self._adamw_update(_concatenate(weights), _concatenate(gradients), *moments)
            if self.stochastic_rounding and weights[0].dtype == torch.bfloat16:
                updated = stochastic_round_bits(updated)
            sizes = [len(weight) for weight in weights]
            for weight, values in zip(weights, updated.split(sizes), strict=True):
                weight.copy_(values)

    def _adamw_update(
        self,
        weights: Float[Tensor, " N"],
        gradients: Float[Tensor, " N"],
        first_moment: "Moment",
        second_moment: "Moment",
    ) -> Float[Tensor, " N"]:
        """Store the new moments, and return the weights after one AdamW update.

        The operations are those of torchao in the same order. At most 28 bytes per number are allocated at a time.
        """
        beta1, beta2 = self.betas
        m = first_moment.value().lerp_(gradients, 1 - beta1)
        first_moment.set(m)
        v = second_moment.value().lerp_(gradients.square(), 1 - beta2)
        second_moment.set(v)
        if self.weight_decay:
            weights = weights - self.lr * self.weight_decay * weights
        denominator = v.sqrt_().div_((1 - beta2**self.num_steps).sqrt()).add_(EPS)
        update = m.div_(1 - beta1**self.num_steps).mul_(self.lr).div_(denominator)
        return weights - update

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        names = ("exp_avg", "exp_avg_sq")
        return {"step": self.num_steps} | {
            f"{index}.{name}.{suffix}": tensor
            for index, moments in enumerate(self.moments)
            for name, moment in zip(names, moments, strict=True)
            for suffix, tensor in moment.tensors().items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        state = self.tensors()
        if {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in tensors.items()}:
            raise InputError("tensors have other names or shapes; expected those of this optimizer's state")
        for name, tensor in state.items():
            tensor.copy_(tensors[name])


class Codebook(NamedTuple):
    """The level that each 8-bit code stands for, and the thresholds between them for rounding."""

    levels: Float[Tensor, "256"]  # the number that each code represents
    thresholds: Float[Tensor, "255"]  # the least number that is rounded up to each code but the first

    @classmethod
    def on_device(cls, levels: Float[Tensor, "256"], device: torch.device) -> "Codebook":
        return cls(levels.to(device), rounding_thresholds(levels).to(device))


class EightBitMoment:
    """A moment of N numbers in 8 bits: a code for each number, and a scale for each block."""

    def __init__(self, size: int, codebook: Codebook):
        self.codebook, device = codebook, codebook.levels.device
        self.codes = torch.zeros(size, dtype=torch.uint8, device=device)
        self.scales = torch.zeros(size // BLOCK, device=device)

    def value(self) -> Float[Tensor, " N"]:
        return self.codebook.levels[self.codes.int()].view(-1, BLOCK).mul_(self.scales[:, None]).view(-1)

    def set(self, value: Float[Tensor, " N"]) -> None:
        """Store the code of the level that is nearest to each number of a block, and the scale of the block."""
        blocks = value.view(-1, BLOCK)
        scales = torch.linalg.vector_norm(blocks, torch.inf, dim=-1).clip_(1e-12)
        self.codes.copy_(nearest_codes(blocks / scales[:, None], self.codebook.thresholds).view(-1))
        self.scales.copy_(scales)

    def tensors(self) -> dict[str, Tensor]:
        return {"codes": self.codes, "scale": self.scales}


class FloatMoment:
    """A moment of N numbers in float32, for parameters that are small or whose size is no multiple of 256."""

    def __init__(self, size: int, codebook: Codebook):
        self.values = torch.zeros(size, device=codebook.levels.device)

    def value(self) -> Float[Tensor, " N"]:
        return self.values.clone()

    def set(self, value: Float[Tensor, " N"]) -> None:
        self.values.copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values}


Moment = EightBitMoment | FloatMoment


def rounding_thresholds(levels: Float[Tensor, "256"]) -> Float[Tensor, "255"]:
    """Return, for each code but the first, the least float32 that torchao rounds up to it.

    It is the middle of two levels, or one of the nearest float32 numbers around it.
    """
    low, high = levels[:-1], levels[1:]
    middle = (low + high) / 2
    neighbours = [middle]
    for _ in range(2):
        neighbours = [neighbours[0].nextafter(low), *neighbours, neighbours[-1].nextafter(high)]
    candidates = torch.stack(neighbours)
    is_rounded_up = candidates - low >= (high - low) * 0.5
    return candidates.gather(0, is_rounded_up.int().argmax(0, keepdim=True))[0]


def nearest_codes(scaled: Float[Tensor, "*N"], thresholds: Float[Tensor, "255"]) -> UInt8[Tensor, "*N"]:
    """Return the code of the nearest level for each number; the numbers of a block are scaled to at most 1."""
    return torch.bucketize(scaled, thresholds, out_int32=True, right=True).to(torch.uint8)


def stochastic_round_bits(x: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Round to bf16 stochastically, by adding integer noise to the bits, in fewer kernels than `stochastic_round`.

    For finite numbers the distribution is that of `teaching.rounding.stochastic_round`. A bf16 number is the upper 16
    bits of a float32. Uniform noise below 2^16 is added to the lower 16 bits, so the probability of a carry is their
    value divided by 2^16.
    """
    noise = torch.randint(2**16, x.shape, dtype=torch.int32, device=x.device)
    return noise.add_(x.view(torch.int32)).bitwise_and_(-(2**16)).view(torch.float32).to(torch.bfloat16)


def divide_into_pieces(parameters: list[torch.nn.Parameter]) -> list[list[ParameterSlice]]:
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
    return parameter.numel() >= MIN_QUANTISED_SIZE and parameter.numel() % BLOCK == 0


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None  # `PolicyOptimizer.step` replaces a missing gradient by zeros
    return parameter.grad


def _concatenate(tensors: list[Tensor]) -> Float[Tensor, " N"]:
    """Return one float32 tensor with the numbers of all tensors."""
    joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return joined.float()


def torchao_levels() -> tuple[Float[Tensor, "256"], Float[Tensor, "256"]]:
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
