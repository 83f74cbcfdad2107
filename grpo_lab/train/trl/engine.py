"""The engine of a run on TRL: its checks, its model and its trainer, as the methods of an `Engine`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import possible_precisions
from grpo_lab.models import load_policy, one_thread_if_tiny
from grpo_lab.models.folders import ModelFiles
from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.train.engines import Engine, most_exact_precision
from grpo_lab.train.trl.fsdp import load_in_first_process
from grpo_lab.train.trl.settings import check_environment, check_settings, differences_table
from grpo_lab.trainer.run.inputs import RunInputs


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

    def difference_lines(self, config: GRPOConfig, changed_settings: dict[str, tuple[Any, Any]]) -> Iterator[str]:
        """Yield a table of the differences, as in `Engine`."""
        yield differences_table(config, changed_settings, self.vllm)

    def loading_precision(self, config: GRPOConfig, device, num_parameters: int) -> str | None:
        """Return the precision to load the model in, or None, as in `Engine`.

        It is the most exact one that the device allows, since TRL does not support "bf16". With FSDP2 it is never None:
        all processes but the first load no weights, so they have to know the precision beforehand.
        """
        precision = most_exact_precision(config, device, num_parameters)
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
        from grpo_lab.train.trl.run import train_on_trl  # imports TRL, which takes seconds

        return train_on_trl(
            inputs, callback, lora=self.lora, fsdp=self.fsdp, vllm=self.vllm, saved_options=saved_options
        )
