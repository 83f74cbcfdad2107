"""The two engines that can train a run, this package's own loop and TRL's, and the choice of one by options."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.lora import LORA_DEFAULTS, check_lora, check_lora_reference, check_no_dropout, check_peft
from grpo_lab.config.precision import pick_precision, possible_precisions
from grpo_lab.train.engines.processes import world_size
from grpo_lab.train.engines.trl_settings import check_settings, differences

OURS, TRL = "grpo_lab", "trl"
SERVER = {"vllm_mode": "server"}
# Options for sampling with vLLM, under TRL's names: the type of each, and the other options that it requires.
VLLM: dict[str, tuple[Any, dict]] = {
    "vllm_mode": (str, {}),
    "vllm_server_base_url": (str, SERVER),
    "vllm_server_host": (str, SERVER),
    "vllm_server_port": (int, SERVER),
    "vllm_server_timeout": (float, SERVER),
    "vllm_group_port": (int, SERVER),
    "vllm_gpu_memory_utilization": (float, {}),
    "vllm_max_model_length": (int, {}),
    "vllm_tensor_parallel_size": (int, {}),
    "vllm_importance_sampling_correction": (bool, {}),
    "vllm_importance_sampling_mode": (str, {}),
    "vllm_importance_sampling_clip_max": (float, {}),
}
# Options that are read only together with others: for each, the required values of the other options.
NEEDS: dict[str, dict] = {
    "fsdp": {"engine": TRL},
    "use_vllm": {"engine": TRL},
    **{name: {"use_peft": True} for name in LORA_DEFAULTS},
    **{name: {"use_vllm": True} | required for name, (_, required) in VLLM.items()},
}


@dataclass(frozen=True)
class OurEngine:
    """The training loop of this package, which runs in one process.

    lora: Values of "lora_r", "lora_alpha", "lora_dropout" and "lora_target_modules"; None trains all parameters.
    """

    can_fit_memory: ClassVar[bool] = True  # whether the memory of a run is planned, and its settings fitted to it

    lora: dict | None = None

    def check(self, config: GRPOConfig) -> None:
        """Raise InputError for several processes, and for settings that do not go with LoRA."""
        if (processes := world_size()) > 1:
            allowed = f"expected 1: our own loop has one process; --engine {TRL} has more"
            raise InputError("WORLD_SIZE", processes, allowed)
        if self.lora is not None:
            check_lora_reference(config.ref_model_sync_steps, config.ref_model_device)

    def precision(self, config: GRPOConfig, device, has_tiny_model: bool) -> str | None:
        """Return the precision to load the model in, one of `PRECISIONS`; None for the default of `load_policy`.

        With LoRA it is the most exact one that the device allows: adapters have so few parameters that memory is no
        reason for a lower precision.
        """
        if self.lora is None:
            return config.requested_precision
        return _most_exact_precision(config, device, has_tiny_model)

    def notes(self, config: GRPOConfig, changes: dict[str, tuple]) -> Iterator[str]:
        """Yield nothing: this engine changes no settings that the user should hear of."""
        yield from ()

    def load(self, name: str, precision: str | None):
        """Load the model and its tokenizer."""
        from grpo_lab.models import keep_freed_memory_if_large, load_policy

        model, tokenizer = load_policy(name, precision=precision)
        keep_freed_memory_if_large(model)
        return model, tokenizer

    def run(self, model, tokenizer, dataset, reward_funcs, config: GRPOConfig, **keywords) -> list[dict]:
        """Train the model; arguments and result are those of `grpo_lab.trainer.train`."""
        from grpo_lab.trainer import train

        if self.lora is not None:
            from grpo_lab.models import add_lora

            add_lora(model, seed=config.seed, **self.lora)
        return train(model, tokenizer, dataset, reward_funcs, config, **keywords)


@dataclass(frozen=True)
class TrlEngine:
    """The training loop of TRL, which runs in one process or several.

    lora: Values of "lora_r", "lora_alpha", "lora_dropout" and "lora_target_modules"; None trains all parameters.
    fsdp: Whether FSDP2 divides the parameters among the processes; otherwise each process holds all of them.
    vllm: Settings for sampling with vLLM, under TRL's names; None samples with transformers.
    """

    can_fit_memory: ClassVar[bool] = False

    lora: dict | None = None
    fsdp: bool = False
    vllm: dict | None = None

    def check(self, config: GRPOConfig) -> None:
        """Raise InputError for a setting that TRL lacks or understands differently."""
        check_settings(config, lora=self.lora is not None)
        if self.lora is not None:
            check_lora_reference(config.ref_model_sync_steps, config.ref_model_device)

    def precision(self, config: GRPOConfig, device, has_tiny_model: bool) -> str | None:
        """Return the precision to load the model in, one of `PRECISIONS`; None for the default of `load_policy`.

        It is the most exact one that the device allows, since TRL does not support "bf16". With FSDP2 it is never None:
        all processes but the first load no weights, so they have to know the precision beforehand.
        """
        precision = _most_exact_precision(config, device, has_tiny_model)
        if precision is None and self.fsdp:
            return pick_precision(device, exact_only=has_tiny_model).name
        return precision

    def notes(self, config: GRPOConfig, changes: dict[str, tuple]) -> Iterator[str]:
        """Yield a table of the differences between this run and the same run in our own loop.

        changes: The settings from a file that were replaced or dropped, as `settings_on_trl` returns them.
        """
        yield differences(config, changes, self.vllm)

    def load(self, name: str, precision: str | None):
        """Load the model and its tokenizer; with FSDP2, only the first process reads the weights."""
        if not self.fsdp:
            from grpo_lab.models import load_policy

            return load_policy(name, precision=precision)
        from grpo_lab.train.engines.fsdp import load_once

        return load_once(name, precision)

    def run(self, model, tokenizer, dataset, reward_funcs, config: GRPOConfig, **keywords) -> list[dict]:
        """Train the model; arguments and result are those of `grpo_lab.trainer.train`."""
        from grpo_lab.train.engines.trl import train

        keywords |= {"lora": self.lora, "fsdp": self.fsdp, "vllm": self.vllm}
        return train(model, tokenizer, dataset, reward_funcs, config, **keywords)


Engine = OurEngine | TrlEngine


def _most_exact_precision(config: GRPOConfig, device, has_tiny_model: bool) -> str | None:
    precisions = possible_precisions(device, config.requested_precision, exact_only=has_tiny_model)
    return precisions[0] if len(precisions) > 1 else config.requested_precision


def make_engine(options: dict) -> Engine:
    """Return the engine for these options.

    Raises:
        InputError: for options that contradict each other, values out of range, and packages that are not installed.
    """
    # A switch that is False counts as not given, except for an option of vLLM, which TRL reads.
    engine_options = {
        name: value for name, value in options.items() if value is not None and (value is not False or name in VLLM)
    }
    _check_needed_options(engine_options)
    name = engine_options.get("engine", OURS)
    if "fsdp" in engine_options and world_size() == 1:
        raise InputError("fsdp", True, "expected it only on several processes: torchrun --nproc_per_node 2 -m ...")
    lora = _lora_settings(engine_options, has_dropout=name == TRL)
    if name == OURS:
        return OurEngine(lora)
    if find_spec(TRL) is None:
        raise InputPackageError("engine", TRL, f'{TRL} is not installed; pip install "grpo-lab[engines]"')
    return TrlEngine(lora, "fsdp" in engine_options, _vllm_settings(engine_options))


def _check_needed_options(engine_options: dict) -> None:
    """Raise InputError for an option without the others that it needs."""
    for name in NEEDS.keys() & engine_options:
        for needed, value in NEEDS[name].items():
            if engine_options.get(needed) != value:
                option = f"--{needed}" if value is True else f"--{needed} {value}"
                raise InputError(name, engine_options[name], f"expected it only with {option}")


def _lora_settings(engine_options: dict, has_dropout: bool) -> dict | None:
    if "use_peft" not in engine_options:
        return None
    lora = LORA_DEFAULTS | {option: engine_options[option] for option in LORA_DEFAULTS if option in engine_options}
    check_lora(lora)
    if not has_dropout:
        check_no_dropout(lora["lora_dropout"])
    check_peft("use_peft", True)
    return lora


def _vllm_settings(engine_options: dict) -> dict | None:
    if "use_vllm" not in engine_options:
        return None
    if find_spec("vllm") is None:
        raise InputPackageError("use_vllm", True, 'vllm is not installed; pip install "vllm", on an NVIDIA GPU')
    return {"use_vllm": True} | {option: engine_options[option] for option in VLLM if option in engine_options}
