"""The options of the commands that are not settings, each declared once; `COMMAND_OPTIONS` holds the declarations.

Those of a task, of its data and of LoRA are declared where they are read, all others here. `add_options` makes the
command line from them (`config/arguments.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.base.files import SETTINGS_FILE
from grpo_lab.base.option import NamedCode, default_values, option, option_specs
from grpo_lab.config.lora import LORA_OPTIONS
from grpo_lab.task_spec import TASK_OPTIONS

OURS, TRL = "grpo_lab", "trl"  # the engines
WITH_TRL = {"engine": TRL}
WITH_VLLM = {"use_vllm": True}
WITH_SERVER = {"vllm_mode": "server"}


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """The options that name tools or an environment."""

    tools: list[str] | None = option(
        None,
        "what the model may call: FILE:function, of your own, with types and a docstring that says what each argument "
        "is; python, which runs a program in a sandbox; sqlite:FILE, which asks a database, read only",
        named_code=NamedCode.IMPORT,
        metavar="TOOL",
        passed_to_evaluate=True,
    )
    environment: str | None = option(
        None,
        "the environment of an episode: reset(**row) begins it, get_reward(), if any, rewards it, and the other public "
        "methods are tools",
        named_code=NamedCode.IMPORT,
        metavar="FILE:CLASS",
        passed_to_evaluate=True,
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `grpo-lab train` on the model, on the file of options, and on the length of the run."""

    model: str = option(
        "tiny",
        '"tiny", "smollm2", "qwen", "auto", a folder or a hub id',
        named_code=NamedCode.NOTHING,
        metavar="MODEL",
    )
    # No file may hold this one: `option_actions` leaves it out.
    config: Path | None = option(
        None,
        f"take options from a YAML file, or from the {SETTINGS_FILE} in the folder of a run; those typed here win",
        named_code=NamedCode.NOTHING,
    )
    dry_run: bool = option(
        False, "say what the run would do, all that is in its way, and the first prompt as the model sees it; and stop"
    )
    num_train_epochs: float | None = option(
        None,
        "how often each problem of the training is sampled, instead of max_steps",
        above=0,
        converted_to="max_steps",
    )
    warmup_ratio: float | None = option(
        None,
        "the share of the steps in which the learning rate rises, instead of warmup_steps",
        at_least=0,
        at_most=1,
        converted_to="warmup_steps",
    )


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options that choose the engine of a run and what it trains; those of LoRA are in `config/lora.py`."""

    engine: str = option(OURS, f"whose loop trains; {OURS} is that of the lessons", group="engine", choices=(OURS, TRL))
    use_peft: bool = option(False, "train only LoRA adapters; the weights of the model are frozen")


@dataclass(frozen=True, kw_only=True)
class TrlOptions:
    """The options of what TRL's trainer can do and our own loop cannot."""

    fsdp: bool = option(
        False, "under torchrun, FSDP2 divides weights, gradients and moments", group="engine", read_if=WITH_TRL
    )
    use_vllm: bool = option(False, "vLLM samples", read_if=WITH_TRL)


def vllm_option(read_if: dict[str, Any], **declaration: Any) -> Any:
    """Declare an option of vLLM whose meaning and default are TRL's."""
    return option(None, "as in TRL", read_if=read_if, default_text="TRL's", **declaration)


@dataclass(frozen=True, kw_only=True)
class VllmOptions:
    """The options of sampling with vLLM, under TRL's names; TRL has their defaults."""

    vllm_mode: str | None = option(
        None,
        "on the GPUs that train, or on its own",
        group="engine",
        choices=("colocate", "server"),
        read_if=WITH_VLLM,
        default_text="TRL's, colocate",
    )
    vllm_server_base_url: str | None = vllm_option(WITH_SERVER, named_code=NamedCode.NOTHING)
    vllm_server_host: str | None = vllm_option(WITH_SERVER, named_code=NamedCode.NOTHING)
    vllm_server_port: int | None = vllm_option(WITH_SERVER)
    vllm_server_timeout: float | None = vllm_option(WITH_SERVER)
    vllm_group_port: int | None = vllm_option(WITH_SERVER)
    vllm_gpu_memory_utilization: float | None = vllm_option(WITH_VLLM)
    vllm_max_model_length: int | None = vllm_option(WITH_VLLM)
    vllm_tensor_parallel_size: int | None = vllm_option(WITH_VLLM)
    vllm_importance_sampling_correction: bool | None = vllm_option(WITH_VLLM)
    vllm_importance_sampling_mode: str | None = vllm_option(WITH_VLLM, named_code=NamedCode.NOTHING)
    vllm_importance_sampling_clip_max: float | None = vllm_option(WITH_VLLM)


TOOL_OPTIONS = option_specs(ToolOptions)
RUN_OPTIONS = option_specs(RunOptions)
VLLM_OPTIONS = option_specs(VllmOptions)
ENGINE_OPTIONS = option_specs(EngineOptions) | LORA_OPTIONS | option_specs(TrlOptions) | VLLM_OPTIONS
COMMAND_OPTIONS = RUN_OPTIONS | TASK_OPTIONS | TOOL_OPTIONS | ENGINE_OPTIONS
# The options that an evaluation takes over from a run, with their defaults.
EVALUATE_OPTION_DEFAULTS = default_values(
    {name: spec for name, spec in COMMAND_OPTIONS.items() if spec.passed_to_evaluate}
)
# Options that are converted to steps once the number of rows is known, and the setting that each replaces.
STEP_SETTING_OF_OPTION = {
    name: spec.converted_to for name, spec in COMMAND_OPTIONS.items() if spec.converted_to is not None
}
