"""What makes the steps of a run: `Engine`, with the methods that a command calls, and our own loop, `OurEngine`.

The other engine is TRL's loop (`--engine trl`): `TrlEngine` in `grpo_lab.train.trl.engine`, imported only by a run that
asks for it. There, too, the task, rewards, model, metrics, evaluation and folder are those of this package.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.lora import check_lora_reference
from grpo_lab.config.precision import possible_precisions
from grpo_lab.models import add_lora, keep_freed_memory_unless_tiny, load_policy, one_thread_if_tiny
from grpo_lab.models.folders import ModelFiles
from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.train.processes import world_size
from grpo_lab.trainer.loop import train_run
from grpo_lab.trainer.run import Run
from grpo_lab.trainer.run.inputs import RunInputs


@dataclass(frozen=True)
class Engine(ABC):
    """An engine trains a run; a command calls its methods in the order in which they stand here.

    lora: Values of "lora_r", "lora_alpha", "lora_dropout" and "lora_target_modules"; None trains all parameters.
    """

    plans_memory: ClassVar[bool]  # whether the memory of a run is planned, and its settings fitted to it

    lora: dict | None = None

    @abstractmethod
    def check(self, config: GRPOConfig, environment: Environment | None = None) -> None:
        """Raise InputError for settings, an environment or processes with which this engine cannot train."""

    @abstractmethod
    def difference_lines(self, config: GRPOConfig, changed_settings: dict[str, tuple[Any, Any]]) -> Iterator[str]:
        """Yield lines on the differences between this run and the same run in our own loop.

        changed_settings: The settings from a file that were replaced or dropped, as in `RunOptions`.
        """

    @abstractmethod
    def loading_precision(self, config: GRPOConfig, device, num_parameters: int) -> str | None:
        """Return the precision to load the model in, one of `PRECISIONS`; None for the default of `load_policy`."""

    @abstractmethod
    def load(self, files: ModelFiles, precision: str | None):
        """Load the model and its tokenizer."""

    @abstractmethod
    def run(
        self,
        inputs: RunInputs,
        *,
        saved_options: dict | None = None,
        callback: Callable[[int, dict], None] | None = None,
    ) -> list[dict]:
        """Train the model in `inputs`, which passed `check` and `RunInputs.check_without_weights`.

        `RunInputs.check_model` is called here. The other arguments and the result are those of
        `grpo_lab.trainer.train`.
        """


@dataclass(frozen=True)
class OurEngine(Engine):
    """The training loop of this package, which runs in one process."""

    plans_memory: ClassVar[bool] = True

    def check(self, config: GRPOConfig, environment: Environment | None = None) -> None:
        """Raise InputError for several processes, and for settings that do not go with LoRA."""
        if (processes := world_size()) > 1:
            allowed = "expected 1: our own loop has one process; --engine trl has more"
            raise InputError("WORLD_SIZE", processes, allowed)
        if self.lora is not None:
            check_lora_reference(config.ref_model_sync_steps, config.ref_model_device)

    def difference_lines(self, config: GRPOConfig, changed_settings: dict[str, tuple[Any, Any]]) -> Iterator[str]:
        """Yield nothing: other engines are compared with this one."""
        yield from ()

    def loading_precision(self, config: GRPOConfig, device, num_parameters: int) -> str | None:
        """Return the precision to load the model in, or None, as in `Engine`.

        With LoRA it is the most exact one that the device allows: adapters have so few parameters that memory is no
        reason for a lower precision.
        """
        if self.lora is None:
            return config.requested_precision
        return most_exact_precision(config, device, num_parameters)

    def load(self, files: ModelFiles, precision: str | None):
        """Load the model and its tokenizer."""
        model, tokenizer = load_policy(files, precision=precision)
        keep_freed_memory_unless_tiny(model)
        one_thread_if_tiny(model)
        return model, tokenizer

    def run(
        self,
        inputs: RunInputs,
        *,
        saved_options: dict | None = None,
        callback: Callable[[int, dict], None] | None = None,
    ) -> list[dict]:
        """Train the model in `inputs` by our own loop, as in `Engine`; with LoRA, the model gets an adapter first."""
        if self.lora is not None:
            add_lora(inputs.model, seed=inputs.config.seed, **self.lora)
        run = Run(**vars(inputs), saved_options=saved_options, inputs_checked=True)
        return train_run(run, callback)


def most_exact_precision(config: GRPOConfig, device, num_parameters: int) -> str | None:
    """Return the most exact of several possible precisions; if there is no choice, the one requested, or None."""
    precisions = possible_precisions(device, num_parameters, config.requested_precision)
    return precisions[0] if len(precisions) > 1 else config.requested_precision
