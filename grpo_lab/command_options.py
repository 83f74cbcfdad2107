"""The options of the commands that are not settings, each declared once; `COMMAND_OPTIONS` holds the declarations.

The parsers and their help texts are in `task_options.py` and in `train`.
"""

from dataclasses import dataclass

from grpo_lab.base.option import NamedCode, default_values, option, option_specs
from grpo_lab.config.lora import LORA_OPTIONS
from grpo_lab.task_spec import TASK_OPTION_SPECS

OURS, TRL = "grpo_lab", "trl"  # the engines
WITH_VLLM = {"use_vllm": True}
WITH_SERVER = WITH_VLLM | {"vllm_mode": "server"}


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """The options that name tools or an environment."""

    tools: list[str] = option(None, named_code=NamedCode.IMPORT, passed_to_evaluate=True)
    environment: str = option(None, named_code=NamedCode.IMPORT, passed_to_evaluate=True)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `grpo-lab train` on the model, on the file of options, and on the length of the run."""

    model: str = option("tiny", named_code=NamedCode.NOTHING)
    config: str = option(None, named_code=NamedCode.NOTHING)  # no file may hold it: `option_actions` leaves it out
    dry_run: bool = option(False, named_code=NamedCode.NOTHING)
    num_train_epochs: float = option(None, named_code=NamedCode.NOTHING, converted_to="max_steps")
    warmup_ratio: float = option(None, named_code=NamedCode.NOTHING, converted_to="warmup_steps")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options that choose the engine of a run and what it trains; those of LoRA are in `config/lora.py`."""

    engine: str = option(OURS, named_code=NamedCode.NOTHING)
    use_peft: bool = option(False, named_code=NamedCode.NOTHING)
    fsdp: bool = option(False, named_code=NamedCode.NOTHING, needs={"engine": TRL})
    use_vllm: bool = option(False, named_code=NamedCode.NOTHING, needs={"engine": TRL})


@dataclass(frozen=True, kw_only=True)
class VllmOptions:
    """The options of sampling with vLLM, under TRL's names; TRL has their defaults."""

    vllm_mode: str = option(None, named_code=NamedCode.NOTHING, needs=WITH_VLLM)
    vllm_server_base_url: str = option(None, named_code=NamedCode.NOTHING, needs=WITH_SERVER)
    vllm_server_host: str = option(None, named_code=NamedCode.NOTHING, needs=WITH_SERVER)
    vllm_server_port: int = option(None, named_code=NamedCode.NOTHING, needs=WITH_SERVER)
    vllm_server_timeout: float = option(None, named_code=NamedCode.NOTHING, needs=WITH_SERVER)
    vllm_group_port: int = option(None, named_code=NamedCode.NOTHING, needs=WITH_SERVER)
    vllm_gpu_memory_utilization: float = option(None, named_code=NamedCode.NOTHING, needs=WITH_VLLM)
    vllm_max_model_length: int = option(None, named_code=NamedCode.NOTHING, needs=WITH_VLLM)
    vllm_tensor_parallel_size: int = option(None, named_code=NamedCode.NOTHING, needs=WITH_VLLM)
    vllm_importance_sampling_correction: bool = option(None, named_code=NamedCode.NOTHING, needs=WITH_VLLM)
    vllm_importance_sampling_mode: str = option(None, named_code=NamedCode.NOTHING, needs=WITH_VLLM)
    vllm_importance_sampling_clip_max: float = option(None, named_code=NamedCode.NOTHING, needs=WITH_VLLM)


VLLM_OPTIONS = option_specs(VllmOptions)
COMMAND_OPTIONS = (
    TASK_OPTION_SPECS
    | option_specs(ToolOptions)
    | option_specs(RunOptions)
    | option_specs(EngineOptions)
    | LORA_OPTIONS
    | VLLM_OPTIONS
)
# The options that an evaluation takes over from a run, with their defaults.
EVALUATE_OPTION_DEFAULTS = default_values(
    {name: spec for name, spec in COMMAND_OPTIONS.items() if spec.passed_to_evaluate}
)
# Options that are read only together with others: for each, the values of the others that it needs.
NEEDED_OPTIONS = {name: spec.needs for name, spec in COMMAND_OPTIONS.items() if spec.needs}
# Options that are converted to steps once the number of rows is known, and the setting that each replaces.
STEP_SETTING_OF_OPTION = {
    name: spec.converted_to for name, spec in COMMAND_OPTIONS.items() if spec.converted_to is not None
}
