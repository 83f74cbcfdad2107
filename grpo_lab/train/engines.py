"""The engines that can train a run, this package's own loop and TRL's, and the choice between them by the options.

With TRL's loop (`--engine trl`), the task, rewards, model, metrics, evaluation and folder are still those of this
package. What concerns TRL alone is in `grpo_lab.train.trl`, which knows nothing of this module. TRL itself is imported
only by a run that needs it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.base.option import check_unused, check_value
from grpo_lab.command_options import ENGINE_OPTIONS, TRL, VLLM_OPTIONS
from grpo_lab.config import GRPOConfig
from grpo_lab.config.lora import LORA_DEFAULTS, check_lora_reference, check_no_dropout, check_peft
from grpo_lab.config.precision import possible_precisions
from grpo_lab.models import add_lora, keep_freed_memory_unless_tiny, load_policy, one_thread_if_tiny
from grpo_lab.models.folders import ModelFiles
from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.train.options import RunOptions
from grpo_lab.train.processes import world_size
from grpo_lab.train.trl.fsdp import load_in_first_process
from grpo_lab.train.trl.settings import EngineDifference, check_environment, check_settings, differences_table
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
    def difference_lines(self, config: GRPOConfig, changed_settings: dict[str, EngineDifference]) -> Iterator[str]:
        """Yield lines on the differences between this run and the same run in our own loop.

        changed_settings: The settings from a file that were replaced or dropped, as `adapt_settings_of_file` returns
            them.
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
        """Train the model in `inputs`, which passed `check` and the `input_checks` that need no weights.

        The checks that need the weights are made here. The other arguments and the result are those of
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

    def difference_lines(self, config: GRPOConfig, changed_settings: dict[str, EngineDifference]) -> Iterator[str]:
        """Yield nothing: other engines are compared with this one."""
        yield from ()

    def loading_precision(self, config: GRPOConfig, device, num_parameters: int) -> str | None:
        """Return the precision to load the model in, or None, as in `Engine`.

        With LoRA it is the most exact one that the device allows: adapters have so few parameters that memory is no
        reason for a lower precision.
        """
        if self.lora is None:
            return config.requested_precision
        return _most_exact_precision(config, device, num_parameters)

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


@dataclass(frozen=True)
class TrlEngine(Engine):
    """The training loop of TRL, which runs in one process or several.

    lora: The settings of LoRA, as in `Engine`.
    fsdp: Whether FSDP2 divides the parameters among the processes; otherwise each process holds all of them.
    vllm: Settings for sampling with vLLM, under TRL's names; None samples with transformers.
    """

    plans_memory: ClassVar[bool] = False

    fsdp: bool = False
    vllm: dict | None = None

    def check(self, config: GRPOConfig, environment: Environment | None = None) -> None:
        """Raise InputError for a setting or an environment that TRL lacks or understands differently."""
        check_settings(config, has_lora=self.lora is not None)
        check_environment(config, environment)

    def difference_lines(self, config: GRPOConfig, changed_settings: dict[str, EngineDifference]) -> Iterator[str]:
        """Yield a table of the differences, as in `Engine`."""
        yield differences_table(config, changed_settings, self.vllm)

    def loading_precision(self, config: GRPOConfig, device, num_parameters: int) -> str | None:
        """Return the precision to load the model in, or None, as in `Engine`.

        It is the most exact one that the device allows, since TRL does not support "bf16". With FSDP2 it is never None:
        all processes but the first load no weights, so they have to know the precision beforehand.
        """
        precision = _most_exact_precision(config, device, num_parameters)
        if precision is None and self.fsdp:
            return possible_precisions(device, num_parameters)[-1]
        return precision

    def load(self, files: ModelFiles, precision: str | None):
        """Load the model and its tokenizer; with FSDP2, only the first process reads the weights."""
        if self.fsdp:
            assert precision is not None  # `loading_precision` returns one with FSDP2
            model, tokenizer = load_in_first_process(files, precision)
        else:
            model, tokenizer = load_policy(files, precision=precision)
        one_thread_if_tiny(model)
        return model, tokenizer

    def run(
        self,
        inputs: RunInputs,
        *,
        saved_options: dict | None = None,
        callback: Callable[[int, dict], None] | None = None,
    ) -> list[dict]:
        """Train the model in `inputs` on TRL, as in `Engine`."""
        from grpo_lab.train.trl.run import train_on_trl  # TRL is an extra

        return train_on_trl(
            inputs, callback, lora=self.lora, fsdp=self.fsdp, vllm=self.vllm, saved_options=saved_options,
            inputs_checked=True,
        )  # fmt: skip


def _most_exact_precision(config: GRPOConfig, device, num_parameters: int) -> str | None:
    """Return the most exact of several possible precisions; if there is no choice, the one requested, or None."""
    precisions = possible_precisions(device, num_parameters, config.requested_precision)
    return precisions[0] if len(precisions) > 1 else config.requested_precision


def make_engine(options: RunOptions) -> Engine:
    """Return the engine that the options choose.

    Raises:
        InputError: for options that contradict each other, values out of range, and packages that are not installed.
    """
    for name, value in options.engine_options.items():
        check_value(ENGINE_OPTIONS[name], value)
    chosen = {name: value for name, value in options.engine_options.items() if not ENGINE_OPTIONS[name].is_off(value)}
    check_unused(chosen, ENGINE_OPTIONS)
    is_trl = chosen.get("engine") == TRL
    if "fsdp" in chosen and world_size() == 1:
        raise InputError("fsdp", True, "expected it only on several processes: torchrun --nproc_per_node 2 -m ...")
    lora = None
    if "use_peft" in chosen:
        lora = LORA_DEFAULTS | {name: chosen[name] for name in LORA_DEFAULTS if name in chosen}
        if not is_trl:
            check_no_dropout(lora["lora_dropout"])
        check_peft("use_peft", True)
    if not is_trl:
        return OurEngine(lora)
    if find_spec(TRL) is None:
        raise InputPackageError("engine", TRL, f'{TRL} is not installed; pip install "grpo-lab[engines]"')
    vllm = None
    if "use_vllm" in chosen:
        if find_spec("vllm") is None:
            raise InputPackageError("use_vllm", True, 'vllm is not installed; pip install "vllm", on an NVIDIA GPU')
        vllm = {name: chosen[name] for name in ("use_vllm", *VLLM_OPTIONS) if name in chosen}
    return TrlEngine(lora, fsdp="fsdp" in chosen, vllm=vllm)
