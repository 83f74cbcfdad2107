"""What TRL does with each setting of this package, and the losses that it has: one table, which imports no TRL.

`trl_settings` and `trl_trainer` read it to hand a run to TRL, `trl_file` and `trl_names` to read a configuration of
TRL's, and docs/trl_table.py to write the page of all settings. Tests compare it with the fields of TRL's GRPOConfig. A
new setting needs a line here.
"""

import enum
from dataclasses import dataclass
from typing import Any

from grpo_lab.config.user_formulas import is_user_formula


class Handling(enum.Enum):
    """What `--engine trl` does with a setting."""

    UNCHANGED = enum.auto()  # TRL receives the value under the same name
    TRANSLATED = enum.auto()  # TRL receives another value, or this package does itself what the setting says
    REFUSED = enum.auto()  # only the default is allowed


class Unit(enum.Enum):
    """What a setting that this package counts in steps, one per rollout, counts on TRL."""

    UPDATES = enum.auto()  # TRL receives it and counts its own steps, which are updates
    STEPS = enum.auto()  # this package reads it, also on TRL


@dataclass(frozen=True)
class TrlSetting:
    """An entry of `TRL_SETTINGS`: what `--engine trl` does with a setting, and what a file for TRL means by it.

    handling: What the engine does with it.
    unit: For a setting that counts steps, what it counts on TRL; None for any other setting.
    is_in_trl: Whether TRL's GRPOConfig has a setting with this name.
    default: TRL's default, where reading a file for TRL needs it; None where it does not.
    is_default_taken: Whether a file for TRL without this setting gives the run TRL's default, since the outcome of a
        run depends on it and the default here is another. A default that is not taken enters a conversion.
    refusal: The reason why a value other than the default is refused.
    drop_reason: Why the training is the same without a refused setting, up to rounding, so that the setting is dropped
        if it comes from the file of a run; "" if it is not dropped.
    """

    handling: Handling
    unit: Unit | None = None
    is_in_trl: bool = True
    default: Any = None
    is_default_taken: bool = False
    refusal: str = ""
    drop_reason: str = ""


def _unchanged(default: Any = None) -> TrlSetting:
    return TrlSetting(Handling.UNCHANGED, default=default, is_default_taken=default is not None)


def _translated(**fields: Any) -> TrlSetting:
    return TrlSetting(Handling.TRANSLATED, **fields)


def _refused(refusal: str, drop_reason: str = "") -> TrlSetting:
    return TrlSetting(Handling.REFUSED, is_in_trl=False, refusal=refusal, drop_reason=drop_reason)


OUR_LOOP_ALONE = "only our own loop has it"

TRL_SETTINGS: dict[str, TrlSetting] = {
    "output_dir": _translated(),
    "seed": _unchanged(default=42),
    "max_steps": _translated(unit=Unit.UPDATES),
    "save_steps": _translated(unit=Unit.UPDATES),
    "save_total_limit": _translated(),
    "resume_from_checkpoint": _translated(),
    "ignore_reward_changes": _translated(is_in_trl=False),
    "disable_tqdm": _translated(),
    "report_to": _translated(),
    "logging_steps": _translated(unit=Unit.STEPS),
    "log_completions": _translated(),
    "log_kl": _refused("TRL has it with beta above 0", drop_reason="measured only with beta above 0"),
    "eval_steps": _translated(unit=Unit.STEPS),
    "num_generations_eval": _translated(),
    "per_device_eval_batch_size": _translated(),
    "num_generations": _unchanged(default=8),
    "generation_batch_size": _unchanged(),
    "max_completion_length": _unchanged(default=512),
    "temperature": _unchanged(),
    "top_k": _unchanged(),
    "top_p": _unchanged(),
    "repetition_penalty": _unchanged(),
    "max_tool_calling_iterations": _unchanged(),
    "tool_timeout": _refused(OUR_LOOP_ALONE),
    "reward_weights": _unchanged(),
    "advantage": _refused("TRL has that of the group"),
    "scale_rewards": _unchanged(),
    "mask_truncated_completions": _unchanged(),
    "loss_type": _unchanged(),
    "importance_sampling_level": _unchanged(),
    "epsilon": _unchanged(),
    "epsilon_high": _unchanged(),
    "delta": _unchanged(),
    "sapo_temperature_pos": _unchanged(),
    "sapo_temperature_neg": _unchanged(),
    "vespo_k_pos": _unchanged(),
    "vespo_lambda_pos": _unchanged(),
    "vespo_k_neg": _unchanged(),
    "vespo_lambda_neg": _unchanged(),
    "beta": _unchanged(),
    "kl_estimator": _refused("TRL has k3 alone"),
    "use_bias_correction_kl": _unchanged(default=True),
    "entropy_coef": _unchanged(),
    "ref_model_sync_steps": _translated(unit=Unit.UPDATES, default=512),
    "ref_model_device": _refused(OUR_LOOP_ALONE),
    "learning_rate": _unchanged(default=1e-6),
    "lr_scheduler_type": _translated(default="linear", is_default_taken=True),
    "warmup_steps": _translated(unit=Unit.STEPS, default=0, is_default_taken=True),
    "weight_decay": _unchanged(),
    "adam_beta1": _unchanged(),
    "adam_beta2": _unchanged(),
    "max_grad_norm": _unchanged(),
    "num_iterations": _unchanged(),
    "per_device_train_batch_size": _translated(default=8),
    "gradient_accumulation_steps": _unchanged(),
    "gradient_checkpointing": _unchanged(),
    "precision": _translated(is_in_trl=False),
    "bf16": _translated(),
    "fp16": _translated(),
    "max_nonfinite_steps": _refused(OUR_LOOP_ALONE, drop_reason="updates that are not finite go on"),
}

# The losses of this package that TRL has, by name. `--engine trl` refuses any other one.
LOSSES_IN_TRL = frozenset({"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"})


def settings_handled(handling: Handling) -> tuple[str, ...]:
    """Return the names of the settings with which `--engine trl` does this."""
    return tuple(name for name, entry in TRL_SETTINGS.items() if entry.handling is handling)


def settings_counted_in(unit: Unit) -> tuple[str, ...]:
    """Return the names of the settings that count steps here and this unit on TRL."""
    return tuple(name for name, entry in TRL_SETTINGS.items() if entry.unit is unit)


def loss_refusal(loss_type: str) -> str | None:
    """Return the reason why `--engine trl` refuses a loss, or None if TRL has it."""
    if is_user_formula(loss_type):
        return OUR_LOOP_ALONE
    return None if loss_type in LOSSES_IN_TRL else "TRL has no such loss"
