"""Each setting of a run for TRL's trainer: passed on by name, translated, or refused by name."""

from dataclasses import fields

from grpo_lab.base.checks import InputError
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.objective import LOSSES, LossSettings

SAME = tuple(name for name, each in SETTINGS.items() if each.metadata["trl"] == "same")
FLAGS = {"fp32": (), "fp32-master": ("bf16",), "fp16": ("fp16",), "bf16-naive": ()}  # precision -> TRL's name for it


def check_settings(config: GRPOConfig) -> None:
    """Raise InputError for the first setting that this engine does not have, or that means another thing there."""
    for name, each in SETTINGS.items():
        value, reason = getattr(config, name), each.metadata["trl"]
        if reason not in ("same", "ours") and value != each.default:
            raise InputError(name, value, f"leave it out with --engine trl: {reason}")
    if (reason := LOSSES[config.loss_type].trl) != "same":
        raise InputError("loss_type", config.loss_type, f"leave it out with --engine trl: {reason}")
    if config.max_steps == 0:
        raise InputError("max_steps", 0, "it must be at least 1 with --engine trl")
    if config.precision not in (None, *FLAGS):
        precisions = ", ".join(FLAGS)
        value_shown = f"is {config.precision!r}, which only our optimizer has"
        raise InputError("precision", config.precision, f"--engine trl takes {precisions}", found=value_shown)


def passed_on(config: GRPOConfig) -> dict:
    """The settings that TRL takes as they are: of those of the losses, the ones that this loss reads."""
    unread = {each.name for each in fields(LossSettings)}.difference(LOSSES[config.loss_type].reads)
    return {name: getattr(config, name) for name in SAME if name not in unread}
