"""Each setting of a run for TRL's trainer: passed on by name, translated, or refused by name; and what then differs."""

from dataclasses import fields

from grpo_lab.base.checks import InputError
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.config.defaults import as_typed
from grpo_lab.objective import LOSSES, LossSettings
from grpo_lab.train.engines.processes import world_size

SAME = tuple(name for name, spec in SETTINGS.items() if spec.trl == "same")
FLAGS = {"fp32": (), "fp32-master": ("bf16",), "fp16": ("fp16",), "bf16-naive": ()}  # precision -> TRL's name for it
# What a run's own file may say, and TRL does without: the training is the same, to rounding.
LEFT_OUT = {"log_kl": "measured with beta above 0 alone", "max_nonfinite_steps": "updates that are not finite go on"}
OTHER_PRECISION = {"bf16": "fp32-master"}
UNITS = ("max_steps", "save_steps", "eval_steps", "ref_model_sync_steps")  # counted in rollouts here, in updates there


def check_settings(config: GRPOConfig, lora: bool = False) -> None:
    """Raise InputError for the first setting that this engine does not have, or that means another thing there."""
    for name, spec in SETTINGS.items():
        value, reason = getattr(config, name), spec.trl
        if reason not in ("same", "translated") and value != spec.default:
            raise InputError(name, value, f"leave it out with --engine trl: {reason}")
    if (reason := LOSSES[config.loss_type].trl) != "same":
        raise InputError("loss_type", config.loss_type, f"leave it out with --engine trl: {reason}")
    if config.max_steps == 0:
        raise InputError("max_steps", 0, "it must be at least 1 with --engine trl")
    precisions = [name for name in FLAGS if not (lora and name == "bf16-naive")]  # peft keeps adapters in float32
    if config.precision not in (None, *precisions):
        only_ours = ", which only our optimizer has" if config.precision not in FLAGS else ""
        allowed, value_shown = f"--engine trl takes {', '.join(precisions)}", f"is {config.precision!r}{only_ours}"
        raise InputError("precision", config.precision, allowed, found=value_shown)
    if config.resume_from_checkpoint and config.ref_model_sync_steps is not None:
        allowed = "expected none with resume_from_checkpoint and --engine trl, whose checkpoints lack the refreshed one"
        raise InputError("ref_model_sync_steps", config.ref_model_sync_steps, allowed)
    rows_of_a_process(config)


def passed_on(config: GRPOConfig) -> dict:
    """The settings that TRL takes as they are: of those of the losses, the ones that this loss reads."""
    unused = {member.name for member in fields(LossSettings)}.difference(LOSSES[config.loss_type].reads)
    return {name: getattr(config, name) for name in SAME if name not in unused}


def rows_of_a_process(config: GRPOConfig) -> dict[str, int]:
    """How each of the processes takes its part of an update, so that an update sees the rows that it sees on one.

    Raises:
        InputError: where they cannot be shared evenly, or where the loss would not be that of the whole update.
    """
    processes = world_size()
    rows, parts = config.rows_at_once, config.gradient_accumulation_steps
    if rows % processes == 0:
        rows //= processes
    elif parts % processes == 0:
        parts //= processes
    else:
        problem = f"is {rows}, with {parts} parts of an update, and there are {processes} processes to share its rows"
        allowed = f"one of the two has to be a multiple of {processes}"
        raise InputError("per_device_train_batch_size", rows, allowed, found=problem)
    if processes > 1 and LOSSES[config.loss_type].divided_by == "microbatch_tokens":
        problem = f"is {config.loss_type!r}, which TRL averages in each process by itself"
        raise InputError("loss_type", config.loss_type, "expected another one", found=problem)
    return {"per_device_train_batch_size": rows, "gradient_accumulation_steps": parts}


def settings_on_trl(saved: dict, typed: dict) -> tuple[dict, dict[str, tuple]]:
    """The settings of a run's own file as TRL can have them; and those that differ from the file.

    The latter by name: the value in the file, and what takes its place or why it is left out.
    What was typed stays, and is refused by `check_settings`; so does what would be another training.
    """
    settings, changes = dict(saved), {}
    for name, reason in LEFT_OUT.items():
        value = saved.get(name, SETTINGS[name].default)
        if name not in typed and value != SETTINGS[name].default:
            changes[name] = (value, reason)
            del settings[name]
    precision = saved.get("precision")
    if "precision" not in typed and precision in OTHER_PRECISION:
        settings["precision"] = OTHER_PRECISION[precision]
        changes["precision"] = (precision, f"{settings['precision']}: 16 bytes per parameter, not 6")
    return settings, changes


def differences(config: GRPOConfig, changes: dict[str, tuple], vllm: dict | None = None) -> str:
    """Tabulate what differs between this run on TRL and the same run in our own loop."""
    rows = dict(changes)
    updates = config.updates_per_step
    processes = world_size()
    if updates > 1:
        for name in UNITS:
            if value := getattr(config, name):
                rows[name] = (value, f"{value * updates} updates, which are {value} steps")
    if processes > 1:
        for name, value in rows_of_a_process(config).items():
            our_value = config.rows_at_once if name == "per_device_train_batch_size" else getattr(config, name)
            rows[name] = (our_value, f"{value} in each of {processes} processes")
    rows["sampler"] = ("our own", f"vLLM ({vllm.get('vllm_mode', 'colocate')})" if vllm else "transformers' generate")
    typed = [(name, as_typed(our_value), as_typed(trl_value)) for name, (our_value, trl_value) in rows.items()]
    lines = [("setting", "here", "on TRL"), *typed]
    names, our_values, _ = zip(*lines, strict=True)
    first, second = max(map(len, names)), max(map(len, our_values))  # widths
    return "\n".join(f"{name:<{first}}  {ours:<{second}}  {trls}" for name, ours, trls in lines)
