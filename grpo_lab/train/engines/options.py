"""The engine that trains a run, and the options that choose it: trainer, LoRA, FSDP2 and vLLM."""

from argparse import SUPPRESS, ArgumentParser
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.arguments import argparse_type
from grpo_lab.config.lora import LORA_DEFAULTS, check_lora, check_no_dropout, check_peft, check_reference
from grpo_lab.config.precision import pick_precision, possible_precisions
from grpo_lab.train.engines.processes import world_size
from grpo_lab.train.engines.settings import check_settings

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
class Engine:
    """The training loop of a run, with its settings for LoRA, FSDP2 and vLLM.

    name: "grpo_lab" for this package's own loop, "trl" for TRL's.
    lora: Values of "lora_r", "lora_alpha", "lora_dropout" and "lora_target_modules"; None trains all parameters.
    fsdp: Whether FSDP2 divides the parameters among the processes; otherwise each process holds all of them.
    vllm: Settings for sampling with vLLM, under TRL's names; None samples with transformers.
    """

    name: str = OURS
    lora: dict | None = None
    fsdp: bool = False
    vllm: dict | None = None

    def check(self, config: GRPOConfig) -> None:
        """Raise InputError for a setting or a number of processes that the engine does not support."""
        if self.name == TRL:
            check_settings(config, lora=self.lora is not None)
        elif (processes := world_size()) > 1:
            allowed = f"expected 1: our own loop has one process; --engine {TRL} has more"
            raise InputError("WORLD_SIZE", processes, allowed)
        if self.lora is not None:
            check_reference(config)

    def precision(self, config: GRPOConfig, device, is_tiny: bool) -> str | None:
        """Return the precision to load the model in, one of `PRECISIONS`; None for the default of the device.

        If the device allows several, TRL and LoRA get the most exact one: TRL does not support "bf16", and adapters
        have so few parameters that memory is no reason for a lower precision.
        """
        modes = possible_precisions(device, config.requested_precision, is_tiny)
        takes_most_exact = self.name == TRL or self.lora is not None
        return modes[0] if takes_most_exact and len(modes) > 1 else config.requested_precision

    def load(self, name: str, config: GRPOConfig, device, is_tiny: bool):
        """Load the model and its tokenizer; with FSDP2, only the first process reads the weights."""
        from grpo_lab.models import load_policy

        precision = self.precision(config, device, is_tiny)
        if not self.fsdp:
            return load_policy(name, precision=precision)
        from grpo_lab.train.engines.pieces import load_once

        return load_once(name, precision or pick_precision(device, small=is_tiny).name)

    def run(self, model, tokenizer, dataset, reward_funcs, config: GRPOConfig, **keywords) -> list[dict]:
        """Train the model with this engine, with the arguments and the result of `grpo_lab.trainer.train`."""
        if self.name == OURS:
            from grpo_lab.trainer import train

            if self.lora is not None:
                from grpo_lab.models import add_lora

                add_lora(model, seed=config.seed, **self.lora)
            return train(model, tokenizer, dataset, reward_funcs, config, **keywords)
        from grpo_lab.train.engines.trl import train as train_with_trl

        keywords |= {"lora": self.lora, "fsdp": self.fsdp, "vllm": self.vllm}
        return train_with_trl(model, tokenizer, dataset, reward_funcs, config, **keywords)


def add_engine_options(parser: ArgumentParser) -> None:
    """Add --engine, --use_peft, --fsdp, --use_vllm and their further options, none of which has a default."""
    group = parser.add_argument_group("engine")
    trl, server = f"with --engine {TRL}", "with --vllm_mode server"
    modes, names = {"choices": ("colocate", "server")}, {"nargs": "+", "metavar": "NAME"}
    for name, about, kind in (
        ("engine", f"whose loop trains (default {OURS}: the one of the lessons)", {"choices": (OURS, TRL)}),
        ("use_peft", "train adapters of LoRA alone, beside frozen weights", _switch()),
        ("lora_r", "rank of an adapter (default 16)", argparse_type(int)),
        ("lora_alpha", "adapters are multiplied by alpha / r (default 32)", argparse_type(int)),
        ("lora_dropout", f"{trl} (default 0; TRL's is 0.05)", argparse_type(float)),
        ("lora_target_modules", "maps with an adapter, or all-linear (default: peft's)", names),
        ("fsdp", f"{trl}, under torchrun: FSDP2 divides weights, gradients and moments", _switch()),
        ("use_vllm", f"{trl}: vLLM samples", _switch()),
        ("vllm_mode", "on the GPUs that train, or on its own (TRL's default: colocate)", modes),
    ):  # fmt: skip
        group.add_argument(f"--{name}", help=about, default=SUPPRESS, **kind)
    for name, (kind, required) in VLLM.items():
        if name != "vllm_mode":
            about = f"TRL's, {server if required else 'with --use_vllm'}"
            group.add_argument(f"--{name}", help=about, default=SUPPRESS, **argparse_type(kind))


def make_engine(options: dict) -> Engine:
    """Return the engine that the options choose.

    Raises:
        InputError: For options that contradict each other, values out of range, and packages that are not installed.
    """
    # A switch that is False counts as not given, except for an option of vLLM, which TRL reads.
    engine_options = {
        name: value for name, value in options.items() if value is not None and (value is not False or name in VLLM)
    }
    for name in NEEDS.keys() & engine_options:
        for needed, value in NEEDS[name].items():
            if engine_options.get(needed) != value:
                option = f"--{needed}" if value is True else f"--{needed} {value}"
                raise InputError(name, engine_options[name], f"expected it only with {option}")
    name, use_vllm = engine_options.get("engine", OURS), "use_vllm" in engine_options
    if "fsdp" in engine_options and world_size() == 1:
        raise InputError("fsdp", True, "expected it only on several processes: torchrun --nproc_per_node 2 -m ...")
    lora = None
    if "use_peft" in engine_options:
        lora = LORA_DEFAULTS | {option: engine_options[option] for option in LORA_DEFAULTS if option in engine_options}
        check_lora(lora)
        if name == OURS:
            check_no_dropout(lora["lora_dropout"])
        check_peft("use_peft", True)
    if name == TRL and find_spec(TRL) is None:
        raise InputPackageError("engine", TRL, f'{TRL} is not installed; pip install "grpo-lab[engines]"')
    if use_vllm and find_spec("vllm") is None:
        raise InputPackageError("use_vllm", True, 'vllm is not installed; pip install "vllm", on an NVIDIA GPU')
    vllm = None
    if use_vllm:
        vllm = {"use_vllm": True} | {option: engine_options[option] for option in VLLM if option in engine_options}
    return Engine(name, lora, "fsdp" in engine_options, vllm)


def _switch() -> dict:
    """Return the keyword arguments of `add_argument` for a bool, which `--name` without a value sets to True."""
    return {"nargs": "?", "const": True, **argparse_type(bool)}
