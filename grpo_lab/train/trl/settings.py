"""The settings of a run on TRL: what TRL receives, which settings are refused, and a table of the differences.

TRL receives what `settings_for_trl` returns. All other settings are read by this package, on TRL as well, and keep
their unit: `eval_steps`, `warmup_steps` and `logging_steps` count steps.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from grpo_lab.base.checks import InputError
from grpo_lab.base.commands import as_option_text
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.config.lora import check_lora_reference
from grpo_lab.objective import LOSSES, LossSettings
from grpo_lab.train.processes import world_size
from grpo_lab.train.trl.table import OUR_SETTINGS, Handling, Unit, loss_refusal, settings_counted_in, settings_handled

if TYPE_CHECKING:  # not imported here, so that the error for a wrong option appears at once
    from grpo_lab.rollout.environments.environment import Environment

# The switches of TRL's configuration that choose each precision.
PRECISION_FLAGS = {"fp32": (), "fp32-master": ("bf16",), "fp16": ("fp16",), "bf16-naive": ()}
# Precisions in the file of a run that TRL lacks, and the precision that replaces each.
PRECISION_SUBSTITUTES = {"bf16": "fp32-master"}


@dataclass(frozen=True)
class EngineDifference:
    """A difference between a run on TRL and the same run in our own loop.

    in_our_loop: The value of a setting in our own loop, or a text on what our own loop does.
    on_trl: The value that TRL receives, or a text on what TRL does.
    """

    in_our_loop: Any
    on_trl: Any


def check_settings(config: GRPOConfig, has_lora: bool = False) -> None:
    """Raise InputError for the first setting that TRL lacks or understands differently.

    has_lora: Whether the run trains adapters instead of all parameters.
    """
    for name, spec in SETTINGS.items():
        value, entry = getattr(config, name), OUR_SETTINGS[name]
        if entry.handling is Handling.REFUSED and value != spec.default:
            raise InputError(name, value, f"leave it out with --engine trl: {entry.refusal}")
    if refusal := loss_refusal(config.loss_type):
        raise InputError("loss_type", config.loss_type, f"leave it out with --engine trl: {refusal}")
    if config.max_steps == 0:
        raise InputError("max_steps", 0, "it must be at least 1 with --engine trl")
    # With LoRA there is no bf16-naive, since peft keeps adapters in float32.
    precisions = [name for name in PRECISION_FLAGS if not (has_lora and name == "bf16-naive")]
    if config.precision not in (None, *precisions):
        only_ours = ", which only our optimizer has" if config.precision not in PRECISION_FLAGS else ""
        allowed, problem = f"--engine trl takes {', '.join(precisions)}", f"is {config.precision!r}{only_ours}"
        raise InputError("precision", config.precision, allowed, problem=problem)
    if config.resume_from_checkpoint and config.ref_model_sync_steps is not None:
        allowed = "expected none with resume_from_checkpoint and --engine trl, whose checkpoints lack the refreshed one"
        raise InputError("ref_model_sync_steps", config.ref_model_sync_steps, allowed)
    if has_lora:
        check_lora_reference(config.ref_model_sync_steps, config.ref_model_device)
    batch_settings_per_process(config)


def check_environment(config: GRPOConfig, environment: "Environment | None") -> None:
    """Raise InputError for an environment that TRL lacks, or that it cannot evaluate with several processes."""
    from grpo_lab.rollout.environments.tools import ToolEnvironment

    if environment is None:
        return
    if not isinstance(environment, ToolEnvironment):
        reason = "is trl, which has no environment that replies within a completion"
        raise InputError("engine", "trl", "train with grpo_lab's own loop", problem=reason)
    if config.eval_steps is not None and world_size() > 1:
        expected = "leave it out with --engine trl, tools or an environment, and several processes"
        raise InputError("eval_steps", config.eval_steps, expected)


def settings_for_trl(config: GRPOConfig) -> dict[str, Any]:
    """Return the settings of TRL's GRPOConfig that follow from ours; settings that the loss does not read are left out.

    config: Our configuration of the run, with a precision.
    """
    assert config.precision is not None  # `train` has set it
    unread = {member.name for member in fields(LossSettings)}.difference(LOSSES[config.loss_type].reads)
    settings = {name: getattr(config, name) for name in settings_handled(Handling.UNCHANGED) if name not in unread}
    settings |= batch_settings_per_process(config) | settings_in_updates(config)
    settings |= {flag: flag in PRECISION_FLAGS[config.precision] for flag in ("bf16", "fp16")}
    settings["logging_steps"] = config.updates_per_step  # the metrics of each step
    settings["sync_ref_model"] = config.ref_model_sync_steps is not None
    if settings["sync_ref_model"]:
        settings["ref_model_mixup_alpha"] = 1.0  # the reference becomes the policy
    return settings


def batch_settings_per_process(config: GRPOConfig) -> dict[str, int]:
    """Return the micro-batch size and accumulation steps with which all processes share the rows of an update.

    Raises:
        InputError: if the processes cannot share the rows of an update evenly, or if the loss averaged in each process
            is not the loss of the whole update.
    """
    num_processes = world_size()
    microbatch_size, accumulation_steps = config.microbatch_size, config.gradient_accumulation_steps
    if microbatch_size % num_processes == 0:
        microbatch_size //= num_processes
    elif accumulation_steps % num_processes == 0:
        accumulation_steps //= num_processes
    else:
        problem = f"is {microbatch_size}, with {accumulation_steps} parts of an update, and there are {num_processes} "
        problem += "processes to share its rows"
        allowed = f"one of the two has to be a multiple of {num_processes}"
        raise InputError("per_device_train_batch_size", microbatch_size, allowed, problem=problem)
    if num_processes > 1 and LOSSES[config.loss_type].depends_on_microbatches:
        problem = f"is {config.loss_type!r}, which TRL averages in each process by itself"
        raise InputError("loss_type", config.loss_type, "expected another one", problem=problem)
    return {"per_device_train_batch_size": microbatch_size, "gradient_accumulation_steps": accumulation_steps}


def settings_in_updates(config: GRPOConfig) -> dict[str, int]:
    """Return the settings that this package counts in steps, one per rollout, and that TRL receives in updates."""
    steps = {name: getattr(config, name) for name in settings_counted_in(Unit.UPDATES)}
    steps["save_steps"] = config.save_steps or config.max_steps  # 0: only at the end
    return {name: count * config.updates_per_step for name, count in steps.items() if count is not None}


def adapt_settings_of_file(options_of_file: dict, typed: dict) -> tuple[dict, dict[str, EngineDifference]]:
    """Replace or drop settings in the file of a run that TRL lacks, if the training stays the same without them.

    All other settings stay in the result, and `check_settings` refuses those that TRL lacks.

    Args:
        options_of_file: The options in the file.
        typed: The options that were typed, which are not changed.

    Returns:
        The options, and the changed settings by name: the value in the file, and its replacement or the reason why it
        is dropped.
    """
    options, changed_settings = dict(options_of_file), {}
    for name, entry in OUR_SETTINGS.items():
        default = SETTINGS[name].default
        if entry.drop_reason and name not in typed and options_of_file.get(name, default) != default:
            changed_settings[name] = EngineDifference(options.pop(name), entry.drop_reason)
    precision = options_of_file.get("precision")
    if "precision" not in typed and precision in PRECISION_SUBSTITUTES:
        options["precision"] = PRECISION_SUBSTITUTES[precision]
        changed_settings["precision"] = EngineDifference(
            precision, f"{options['precision']}: 16 bytes per parameter, not 6"
        )
    return options, changed_settings


def differences_table(
    config: GRPOConfig, changed_settings: dict[str, EngineDifference], vllm: dict | None = None
) -> str:
    """Return a table of the differences between this run on TRL and the same run in our own loop.

    changed_settings: The settings from a file that were replaced or dropped, as `adapt_settings_of_file` returns them.
    vllm: Settings of vLLM, as in `TrlEngine`.
    """
    differences = dict(changed_settings)
    num_processes = world_size()
    if config.updates_per_step > 1:
        for name, updates in settings_in_updates(config).items():
            in_updates = f"{updates} updates, which are {updates // config.updates_per_step} steps"
            differences[name] = EngineDifference(getattr(config, name), in_updates)
    if num_processes > 1:
        for name, value in batch_settings_per_process(config).items():
            our_value = config.microbatch_size if name == "per_device_train_batch_size" else getattr(config, name)
            differences[name] = EngineDifference(our_value, f"{value} in each of {num_processes} processes")
    trl_sampler = f"vLLM ({vllm.get('vllm_mode', 'colocate')})" if vllm else "transformers' generate"
    differences["sampler"] = EngineDifference("our own", trl_sampler)
    rows = [
        (name, as_option_text(difference.in_our_loop), as_option_text(difference.on_trl))
        for name, difference in differences.items()
    ]
    lines = [("setting", "here", "on TRL"), *rows]
    names, our_values, _ = zip(*lines, strict=True)
    name_width, value_width = max(map(len, names)), max(map(len, our_values))
    return "\n".join(f"{name:<{name_width}}  {ours:<{value_width}}  {trls}" for name, ours, trls in lines)
