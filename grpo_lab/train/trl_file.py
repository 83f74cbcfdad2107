"""Translation of a TRL configuration into options of this package.

The configuration is a YAML or JSON file for TRL's TrlParser, or the result of its `GRPOConfig.to_dict()`. Each name is
read with TRL's meaning: steps are updates, and the batch is the batch of one process. A setting that the file does not
contain gets TRL's default if the outcome of a run depends on it.
"""

import difflib
import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from grpo_lab.base import shell_line
from grpo_lab.base.checks import InputError
from grpo_lab.base.parser import as_option_text
from grpo_lab.base.setting import unused_settings
from grpo_lab.command_options import NEEDED_OPTIONS, TRL
from grpo_lab.config import SETTINGS
from grpo_lab.config.schedules import SCHEDULES
from grpo_lab.train import trl_names
from grpo_lab.train.engines.trl_table import TRL_SETTINGS

SAME_MEANING, OTHER_MEANING, NO_EFFECT = "taken", "means something else here", "has no effect here"
ANOTHER_VERSION, UNSUPPORTED, UNKNOWN = "of another version", "not here", "unknown"
NOTE_KINDS = (SAME_MEANING, OTHER_MEANING, NO_EFFECT, ANOTHER_VERSION, UNSUPPORTED, UNKNOWN)
REFUSED = (UNSUPPORTED, UNKNOWN)
# Settings that a file of this package may contain and a file for TRL may not.
OUR_SETTINGS_ALONE = {name for name, entry in TRL_SETTINGS.items() if not entry.is_in_trl}
TRL_BATCH_SETTINGS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
)
TABLE_WIDTH = 116  # characters in a line of the table


def is_from_trl(content: dict, options: Container[str]) -> bool:
    """Return True if a file is for TRL: it has a name that TRL knows and that is not an option of this command.

    content: The values in the file by name.
    options: Names of the options of the command.
    """
    names = {name for name, value in content.items() if value is not None}
    return not names & OUR_SETTINGS_ALONE and any(
        name in trl_names.NAMES_WITHOUT_SETTING and name not in options for name in names
    )


@dataclass
class Translation:
    """A translated TRL configuration, with a note on each name in the file.

    options: Options of the command, by name.
    notes_by_kind: For each of `NOTE_KINDS`, the names in the file and a text on each.
    trl_defaults: Options that have TRL's defaults because the file does not contain them.
    """

    options: dict[str, Any] = field(default_factory=dict)
    notes_by_kind: dict[str, dict[str, str]] = field(default_factory=lambda: {kind: {} for kind in NOTE_KINDS})
    trl_defaults: dict[str, Any] = field(default_factory=dict)

    def note(self, kind: str, name: str, text: str) -> None:
        self.notes_by_kind[kind][name] = text

    def take(self, name: str, value: Any, text: str | None = None) -> None:
        """Set an option and note it; a text says what the name means here if that differs from TRL's meaning."""
        self.options[name] = value
        self.note(SAME_MEANING if text is None else OTHER_MEANING, name, text or as_option_text(value))

    @property
    def problems(self) -> list[str]:
        """Names in the file that a run here cannot follow."""
        return [name for kind in REFUSED for name in self.notes_by_kind[kind]]

    def table(self, file: str) -> str:
        """Return a table of all names in the file, grouped by the kind of their notes."""
        lines = [f"{file}, read as TRL {trl_names.VERSION} reads it:"]
        for kind, notes in self.notes_by_kind.items():
            if kind == SAME_MEANING:
                lines += _wrapped(kind, [f"{name} {text}" for name, text in notes.items()])
            elif kind == NO_EFFECT:
                for reason in dict.fromkeys(notes.values()):
                    lines += _wrapped(kind, [name for name in notes if notes[name] == reason], f": {reason}")
            else:
                lines += [line for name, text in notes.items() for line in _wrapped(kind, [f"{name}: {text}"])]
        if self.trl_defaults:
            values = [f"{name} {as_option_text(value)}" for name, value in self.trl_defaults.items()]
            lines += _wrapped("not in it: TRL's defaults", values)
        return "\n".join(lines)


def translate(content: dict, options: Container[str], typed: dict) -> Translation:
    """Translate a TRL configuration into options of the command.

    Args:
        content: The values in the file by name; a None is ignored.
        options: Names of the options of the command.
        typed: The options that were typed, which override the file.

    Raises:
        InputError: for a batch size that is not a positive whole number.
    """
    translation = Translation()
    values = _current_names({name: value for name, value in content.items() if value is not None}, translation)
    if "dataset_name" in values and "task" not in typed:
        task = shell_line(["--task", str(values["dataset_name"])])
        translation.note(UNSUPPORTED, "dataset_name", f"a file may not name what is downloaded; type {task}")
    overridden_names = {*typed, *(("bf16", "fp16") if "precision" in typed else ())}
    values = {name: value for name, value in values.items() if name not in overridden_names}
    _translate_batch(values, typed, translation)
    _translate_steps(values, typed, translation)
    _drop_switched_off(values, typed, translation)
    _translate_rest(values, options, translation)
    _translate_dropout(values, typed, translation)
    for name, entry in TRL_SETTINGS.items():
        same_setting = {"warmup_steps", "warmup_ratio"} if name == "warmup_steps" else {name}
        if entry.is_default_taken and not same_setting & {*translation.options, *typed}:
            translation.options[name] = translation.trl_defaults[name] = entry.default
    _drop_unused(typed, translation)
    noted_names = {name for notes in translation.notes_by_kind.values() for name in notes}
    for name, value in content.items():
        if value is not None and name not in noted_names:
            is_overridden = name in overridden_names
            translation.note(
                NO_EFFECT, name, "it was typed" if is_overridden else "it is the same here, or nothing reads it"
            )
    return translation


def check_translation(translation: Translation, file: str) -> None:
    """Raise one InputError for all names in the file that a run here cannot follow."""
    if translation.problems:
        names = ", ".join(translation.problems)
        expected = "expected a file without them; the table above says why. They may be removed, or typed as options"
        raise InputError("config", file, expected, problem=f"is {file!r}, which says what is not here: {names}")


def _current_names(values: dict, translation: Translation) -> dict:
    """Return the values under the names of TRL 1.16, and note each name of another version."""
    for name in [name for name in values if name in trl_names.OTHER_VERSIONS]:
        origin, successor = trl_names.OTHER_VERSIONS[name]
        value = values.pop(name)
        translation.note(
            ANOTHER_VERSION, name, f"{as_option_text(value)}; {origin}" + (f"; now {successor}" if successor else "")
        )
        if successor is not None:
            values.setdefault(successor, value)
    return values


def _translate_batch(values: dict, typed: dict, translation: Translation) -> None:
    """Translate the sizes of batches, of a file for one process or of a dump of TRL's configuration.

    A dump contains `generation_batch_size`, the completions of all processes in a step.
    """
    sizes = {name: values.pop(name) for name in TRL_BATCH_SETTINGS if name in values}
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(name, value, "expected a whole number of at least 1, as in TRL")
    if typed.keys() & {*TRL_BATCH_SETTINGS}:
        for name in sizes:
            translation.note(NO_EFFECT, name, "another batch was typed")
        return
    rows = sizes.get("per_device_train_batch_size", TRL_SETTINGS["per_device_train_batch_size"].default)
    accumulation = sizes.get("gradient_accumulation_steps", 1)
    microbatches = sizes.get("steps_per_generation")
    batch = sizes.get("generation_batch_size")
    processes = 1
    if batch is None:
        batch = rows * (microbatches or accumulation)
        factors = f"{rows} x {microbatches or accumulation}"
        translation.take("generation_batch_size", batch, f"{batch} completions per step, {factors} of one process")
    else:
        processes = max(1, batch // (rows * microbatches)) if microbatches else 1
        translation.take("generation_batch_size", batch)
    if "steps_per_generation" in sizes:
        translation.note(OTHER_MEANING, "steps_per_generation", f"{microbatches}: in generation_batch_size")
    translation.take("per_device_train_batch_size", rows)
    if processes > 1:
        text = f"{accumulation * processes}: those of {processes} processes one after another"
        translation.take("gradient_accumulation_steps", accumulation * processes, text)
    else:
        translation.take("gradient_accumulation_steps", accumulation)


class _StepConverter:
    """A converter of settings that TRL counts in updates to options that are counted in steps.

    values: The values in the file that are not translated yet.
    typed: The options that were typed.
    """

    def __init__(self, translation: Translation, values: dict, typed: dict):
        settings = {name: spec.default for name, spec in SETTINGS.items()} | translation.options | typed
        batch, rows = settings["generation_batch_size"], settings["per_device_train_batch_size"]
        update_rows = batch if rows is None else (rows or 1) * settings["gradient_accumulation_steps"]
        iterations = values.get("num_iterations", settings["num_iterations"])
        self.translation, self.updates_per_step = translation, max(1, batch // update_rows) * iterations

    def take(self, name: str, updates: float) -> None:
        """Set an option to the number of steps that have this many updates, rounded up."""
        steps = math.ceil(updates / self.updates_per_step)
        text = None
        if self.updates_per_step != 1:
            text = f"{updates} updates: {steps} steps of {self.updates_per_step} each"
        self.translation.take(name, steps, text)


def _translate_steps(values: dict, typed: dict, translation: Translation) -> None:
    """Translate the settings that TRL counts in updates, and the settings that decide whether they are read."""
    converter = _StepConverter(translation, values, typed)
    _translate_length(values, typed, converter)
    _translate_evaluation_and_saving(values, converter)
    _translate_logging(values, typed, converter)
    _translate_reference(values, converter)


def _translate_length(values: dict, typed: dict, converter: _StepConverter) -> None:
    """Translate the length of the training and of its warm-up, in updates, epochs or as a share of all steps."""
    max_updates, epochs = values.pop("max_steps", -1), values.pop("num_train_epochs", trl_names.NUM_TRAIN_EPOCHS)
    if max_updates > 0:
        converter.take("max_steps", max_updates)
    elif not typed.keys() & {"max_steps", "num_train_epochs"}:
        text = f"{epochs:g}: counted into max_steps, once the rows are known"
        converter.translation.take("num_train_epochs", float(epochs), text)
    warmup = values.pop("warmup_steps", None)
    if warmup is not None and 0 < warmup < 1:
        converter.translation.options["warmup_ratio"] = warmup
        converter.translation.note(
            OTHER_MEANING, "warmup_steps", f"{warmup:g} of the steps: counted once these are known"
        )
    elif warmup is not None:
        converter.take("warmup_steps", warmup)


def _translate_evaluation_and_saving(values: dict, converter: _StepConverter) -> None:
    """Translate how often the run evaluates and saves; this package only has a fixed number of steps in between."""
    translation = converter.translation
    evaluation, saving = values.pop("eval_strategy", "no"), values.pop("save_strategy", "steps")
    if evaluation == "steps" and "eval_steps" not in values:
        values["eval_steps"] = values.get("logging_steps", 10)
    if evaluation not in ("no", "steps"):
        translation.note(UNSUPPORTED, "eval_strategy", f"{evaluation}; type --eval_steps N")
    if saving == "no":
        values.pop("save_steps", None)
        translation.take("save_steps", 0, "0: save_strategy is no")
    elif saving != "steps":
        translation.note(OTHER_MEANING, "save_strategy", f"{saving}; checkpoints are made every save_steps here")
    for action, strategy in {"save": saving, "eval": evaluation}.items():
        name = f"{action}_steps"
        every = values.pop(name, None)
        if every is not None and strategy != "steps":
            translation.note(NO_EFFECT, name, f"{action}_strategy is not steps")
        elif every is not None and 0 < every < 1:
            translation.note(UNSUPPORTED, name, f"{every:g} of the run; type --{name} N")
        elif every is not None:
            converter.take(name, every)


def _translate_logging(values: dict, typed: dict, converter: _StepConverter) -> None:
    """Translate `logging_steps`, which here only decides how often completions are shown."""
    every = values.pop("logging_steps", None)
    if every is not None and values.get("log_completions", typed.get("log_completions")) and every >= 1:
        converter.take("logging_steps", every)
    elif every is not None:
        text = "metrics are written at every step, report_to says where else"
        converter.translation.note(NO_EFFECT, "logging_steps", text)


def _translate_reference(values: dict, converter: _StepConverter) -> None:
    """Translate how often the reference is updated; here it becomes a copy of the policy, never a mixture."""
    is_synced = values.pop("sync_ref_model", False)
    every = values.pop("ref_model_sync_steps", TRL_SETTINGS["ref_model_sync_steps"].default)
    mixture = values.pop("ref_model_mixup_alpha", 0.6)
    if is_synced:
        converter.take("ref_model_sync_steps", every)
        if mixture != 1:
            text = f"{mixture:g}; the reference becomes the policy, as with 1"
            converter.translation.note(UNSUPPORTED, "ref_model_mixup_alpha", text)


def _drop_switched_off(values: dict, typed: dict, translation: Translation) -> None:
    """Drop options of LoRA, vLLM or vLLM's server if these are not switched on."""
    everything = values | typed
    for name in [name for name in values if name.startswith(("lora_", "vllm_")) or name in ("use_rslora", "use_dora")]:
        switch = "use_vllm" if name.startswith("vllm_") else "use_peft"
        for needed, value in ({switch: True} | NEEDED_OPTIONS.get(name, {})).items():
            if name in values and everything.get(needed) != value:
                del values[name]
                translation.note(NO_EFFECT, name, f"nothing reads it without {needed} {as_option_text(value)}")


def _translate_rest(values: dict, options: Container[str], translation: Translation) -> None:
    """Translate every other name: a setting, an option of the command, or a name in the tables of `trl_names`."""
    for name, value in values.items():
        if name == "resume_from_checkpoint":
            translation.note(NO_EFFECT, name, "to go on, type --resume_from_checkpoint")
        elif name == "fsdp":
            translation.note(NO_EFFECT, name, "to divide the model, type --fsdp with --engine trl, under torchrun")
        elif name == "model_name_or_path":
            translation.options["model"] = value
            translation.note(OTHER_MEANING, name, f"{value}: --model")
        elif name == "scale_rewards" and isinstance(value, bool):
            translation.take(name, "group" if value else "none")
        elif name == "lr_scheduler_type" and value not in SCHEDULES:
            translation.note(UNSUPPORTED, name, f"{value}; one of {', '.join(SCHEDULES)}")
        elif name in SETTINGS or name in options:
            translation.take(name, value)
        elif name in trl_names.UNSUPPORTED:
            neutral, remedy = trl_names.UNSUPPORTED[name]
            if value not in neutral:
                translation.note(UNSUPPORTED, name, f"{as_option_text(value)}; {remedy}")
        elif name in trl_names.WHY_NO_EFFECT:
            translation.note(NO_EFFECT, name, trl_names.WHY_NO_EFFECT[name])
        elif name not in trl_names.DATASETS:
            near = difflib.get_close_matches(str(name), {*SETTINGS, *trl_names.NAMES_WITHOUT_SETTING}, n=1)
            translation.note(UNKNOWN, name, f"did you mean {near[0]}?" if near else "neither TRL nor grpo_lab has it")


def _translate_dropout(values: dict, typed: dict, translation: Translation) -> None:
    """Translate the dropout of LoRA's adapters, which is 0.05 by default in TRL and always 0 in our own loop."""
    if not translation.options.get("use_peft") or "lora_dropout" in typed:
        return
    dropout = values.get("lora_dropout", trl_names.LORA_DROPOUT)
    if typed.get("engine", translation.options.get("engine")) == TRL or not dropout:
        if "lora_dropout" not in values:
            translation.options["lora_dropout"] = translation.trl_defaults["lora_dropout"] = dropout
    elif "lora_dropout" in values:
        translation.notes_by_kind[SAME_MEANING].pop("lora_dropout", None)
        translation.note(
            UNSUPPORTED, "lora_dropout", f"{dropout:g}; our own loop has none: --lora_dropout 0, or --engine trl"
        )
    else:
        translation.options["lora_dropout"] = 0.0
        translation.note(OTHER_MEANING, "lora_dropout", f"0: our own loop has none; TRL's default is {dropout:g}")


def _drop_unused(typed: dict, translation: Translation) -> None:
    """Drop settings that nothing reads, such as use_bias_correction_kl without a KL term, which TRL ignores."""
    config = {name: spec.default for name, spec in SETTINGS.items()}
    config |= {name: value for name, value in (translation.options | typed).items() if name in SETTINGS}
    config["output_dir"] = config["output_dir"] or "anywhere"
    for name, spec in SETTINGS.items():
        if spec.choices and not isinstance(config[name], list) and config[name] not in (None, *spec.choices):
            return  # the unknown choice is refused later, when the configuration is made
    while unused := dict(unused_settings(SimpleNamespace(**config), SETTINGS)):
        for name, reason in unused.items():
            config[name] = SETTINGS[name].default
            if name in translation.options:
                del translation.options[name]
                translation.trl_defaults.pop(name, None)
                translation.notes_by_kind[SAME_MEANING].pop(name, None)
                translation.note(NO_EFFECT, name, f"nothing reads it with {reason}")
        if not unused.keys() - typed.keys():
            return


def _wrapped(kind: str, parts: Iterable[str], ending: str = "") -> list[str]:
    """Return lines of the table: the kind, and its parts separated by commas; no lines if there are no parts."""
    parts = list(parts)
    if not parts:
        return []
    parts[-1] += ending
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 2 <= TABLE_WIDTH - 30:
            lines[-1] += f", {part}"
        else:
            lines[-1] += ","
            lines.append(part)
    return [f"  {kind if number == 0 else '':26}  {line}" for number, line in enumerate(lines)]
