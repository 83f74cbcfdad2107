"""All that a plan of memory depends on, and the sizes that follow from it at once."""

from dataclasses import dataclass

from grpo_lab.config import GRPOConfig
from grpo_lab.memory import parts
from grpo_lab.models.shapes import ModelShape
from grpo_lab.precision import Precision
from grpo_lab.rollout.sample import LARGE


@dataclass(frozen=True)
class Setting:
    """A run, a model's shape and a device."""

    shape: ModelShape
    config: GRPOConfig
    mode: Precision
    prompt_length: int
    device_type: str
    card_memory: int

    @property
    def weight(self) -> int:
        """Bytes of a weight, and of a number of the residual stream."""
        return self.mode.weights.itemsize

    @property
    def product(self) -> int:
        """Bytes of a number in the products of forward and backward."""
        return (self.mode.autocast or self.mode.weights).itemsize

    @property
    def length(self) -> int:
        return self.prompt_length + self.config.max_completion_length

    @property
    def fixed_cache(self) -> bool:
        asked = self.config.cache_implementation
        saves_time = self.on_card or self.shape.parameters >= LARGE
        return asked == "static" or (asked is None and saves_time)

    @property
    def on_card(self) -> bool:
        return self.device_type == "cuda"

    @property
    def embedding(self) -> int:
        return self.shape.vocabulary * self.shape.width

    @property
    def bound(self) -> bool:
        """Whether the plan is an upper bound: in half precision, what a CPU takes depends on the processor."""
        return self.device_type == "cpu" and self.product < 4

    @property
    def gradients(self) -> int:
        return parts.weight_bytes(self.shape.parameters, self.weight)

    @property
    def head_gradient(self) -> int:
        """Of an output embedding that is the input's, too: it waits for the gradient from there."""
        return parts.weight_bytes(self.embedding, self.weight) if self.shape.tied else 0

    @property
    def head_copy(self) -> int:
        return parts.weight_bytes(self.embedding, self.product) if self.mode.autocast else 0

    @property
    def half_copies(self) -> int:
        """What autocast copies to half precision: the linear maps of the layers, and the head."""
        return parts.weight_bytes(self.shape.linear + self.embedding, self.product) if self.mode.autocast else 0
