"""Translation of a TRL configuration into options of this package.

The configuration is a YAML or JSON file for TRL's TrlParser, or the result of its `GRPOConfig.to_dict()`. Each name is
read with TRL's meaning: steps are updates, and the batch is the batch of one process. A setting that the file does not
contain gets TRL's default if the outcome of a run depends on it.
"""

import difflib
import enum
import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

from grpo_lab.base import shell_line
from grpo_lab.base.checks import InputError
from grpo_lab.base.commands import as_option_text
from grpo_lab.base.option import changed_values, check_value, default_values, reasons_unread, unused_options
from grpo_lab.command_options import ENGINE_OPTIONS, TRL
from grpo_lab.config import SETTINGS
from grpo_lab.config.settings import SCHEDULES
from grpo_lab.train.trl.table import (
    DATASET_NAMES,
    OTHER_VERSIONS,
    OUR_SETTINGS,
    TRL_DEFAULTS_OF_RUN,
    TRL_DEFAULTS_TO_TRANSLATE,
    TRL_TABLE,
    TRL_VERSION,
    NoEffect,
    OurOption,
    OurSetting,
    Renamed,
    Unsupported,
)

# Settings that a file of this package may contain and a file for TRL may not.
SETTINGS_NOT_IN_TRL = {name for name, entry in OUR_SETTINGS.items() if not entry.is_in_trl}
# Names that a typed option with another name replaces.
REPLACING_OPTIONS = {
    "max_steps": "num_train_epochs",
    "num_train_epochs": "max_steps",
    "warmup_steps": "warmup_ratio",
    "eval_strategy": "eval_steps",
    "save_strategy": "save_steps",
    "bf16": "precision",
    "fp16": "precision",
    **dict.fromkeys(DATASET_NAMES, "task"),
}
TRL_BATCH_SETTINGS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
)
# Names whose values enter a calculation here, by what they have to be. The command checks all other values.
WHOLE_NUMBERS = frozenset({*TRL_BATCH_SETTINGS, "num_iterations"})
NUMBERS = frozenset(
    {
        "max_steps",
        "num_train_epochs",
        "warmup_steps",
        "eval_steps",
        "save_steps",
        "logging_steps",
        "ref_model_sync_steps",
        "ref_model_mixup_alpha",
        "lora_dropout",
    }
)


class NoteKind(enum.Enum):
    """The kind of a note on a name in a file for TRL; its value is the text in the table."""

    SAME_MEANING = "taken"
    OTHER_MEANING = "means something else here"
    NO_EFFECT = "has no effect here"
    ANOTHER_VERSION = "of another version"
    UNSUPPORTED = "not here"
    UNKNOWN = "unknown"


REFUSED_KINDS = (NoteKind.UNSUPPORTED, NoteKind.UNKNOWN)
HEADING_WIDTH = 26  # characters of the first column of the table
PARTS_WIDTH = 86  # characters of its second column, without the comma at the end of a line


@dataclass
class Translation:
    """A translated TRL configuration, with a note on each name in the file.

    options: Options of the command, by name.
    notes_by_kind: For each kind of note, the names in the file and a text on each.
    trl_defaults: Options that have TRL's defaults because the file does not contain them.
    """

    options: dict[str, Any] = field(default_factory=dict)
    notes_by_kind: dict[NoteKind, dict[str, str]] = field(default_factory=lambda: {kind: {} for kind in NoteKind})
    trl_defaults: dict[str, Any] = field(default_factory=dict)

    def note(self, kind: NoteKind, name: str, text: str) -> None:
        """Note what becomes of a name; an earlier note on it is replaced."""
        for notes in self.notes_by_kind.values():
            notes.pop(name, None)
        self.notes_by_kind[kind][name] = text

    def note_no_effect(self, name: str, reason: str) -> None:
        """Note the reason why a name has no effect on a run here."""
        self.note(NoteKind.NO_EFFECT, name, reason)

    def note_unsupported(self, name: str, text: str) -> None:
        """Note that a run here cannot follow a name, with its value and what to do instead."""
        self.note(NoteKind.UNSUPPORTED, name, text)

    def set_option(self, name: str, value: Any, text: str | None = None) -> None:
        """Set an option and note it; a text says what the name means here if that differs from TRL's meaning."""
        self.options[name] = value
        self.note(
            NoteKind.SAME_MEANING if text is None else NoteKind.OTHER_MEANING, name, text or as_option_text(value)
        )

    def set_trl_default(self, name: str, value: Any) -> None:
        """Set an option to TRL's default, which the file does not contain."""
        self.options[name] = self.trl_defaults[name] = value

    @property
    def noted_names(self) -> set[str]:
        return {name for notes in self.notes_by_kind.values() for name in notes}

    @property
    def refused_names(self) -> list[str]:
        """The names in the file that a run here cannot follow."""
        return [name for kind in REFUSED_KINDS for name in self.notes_by_kind[kind]]

    def table(self, file: str) -> str:
        """Return a table of all names in the file, grouped by the kind of their notes."""
        lines = [f"{file}, read as TRL {TRL_VERSION} reads it:"]
        for kind, notes in self.notes_by_kind.items():
            if kind is NoteKind.SAME_MEANING:
                lines += _wrapped(kind.value, [f"{name} {text}" for name, text in notes.items()])
            elif kind is NoteKind.NO_EFFECT:
                for reason in dict.fromkeys(notes.values()):
                    lines += _wrapped(kind.value, [name for name in notes if notes[name] == reason], f": {reason}")
            else:
                lines += [line for name, text in notes.items() for line in _wrapped(kind.value, [f"{name}: {text}"])]
        if self.trl_defaults:
            values = [f"{name} {as_option_text(value)}" for name, value in self.trl_defaults.items()]
            lines += _wrapped("not in it: TRL's defaults", values)
        return "\n".join(lines)


def is_from_trl(content: dict, option_names: Container[str]) -> bool:
    """Return True if a file is for TRL: it has a name that TRL knows and that is not an option of this command.

    content: The values in the file by name.
    option_names: Names of the options of the command.
    """
    names = {name for name, value in content.items() if value is not None}
    names_of_trl = names & TRL_TABLE.keys() - OUR_SETTINGS.keys()
    return not names & SETTINGS_NOT_IN_TRL and any(name not in option_names for name in names_of_trl)


def translate(content: dict, option_names: Container[str], typed: dict) -> Translation:
    """Translate a TRL configuration into options of the command.

    Args:
        content: The values in the file by name; a None is ignored.
        option_names: Names of the options of the command.
        typed: The options that were typed, which override the file.

    Raises:
        InputError: for a value that enters a calculation and is no number, such as a quoted one, or no positive whole
            number where one is needed.
    """
    return _Translator(content, option_names, typed).translate()


def check_translation(translation: Translation, file: str) -> None:
    """Raise one InputError for all names in the file that a run here cannot follow."""
    if translation.refused_names:
        names = ", ".join(translation.refused_names)
        expected = "expected a file without them; the table above says why. They may be removed, or typed as options"
        raise InputError("config", file, expected, problem=f"is {file!r}, which says what is not here: {names}")


class _Translator:
    """A translator of all names in a file for TRL.

    content: The values in the file by name, without any None.
    option_names: Names of the options of the command.
    typed: The options that were typed, which override the file.
    remaining: The values that no method has translated yet, by name.
    translation: What is translated.
    """

    def __init__(self, content: dict, option_names: Container[str], typed: dict):
        self.content = {name: value for name, value in content.items() if value is not None}
        self.option_names = option_names
        self.typed = typed
        self.remaining = dict(self.content)
        self.translation = Translation()

    def translate(self) -> Translation:
        """Translate all names, and note each of them."""
        self._rename_to_current()
        self._drop_typed()
        self._check_numbers()
        self._note_datasets()
        self._translate_batch()  # first of the counts: `_updates_per_step` reads its result
        self._translate_length()
        self._translate_evaluation()
        self._translate_saving()
        self._translate_logging()
        self._translate_reference()
        self._drop_switched_off()
        self._translate_remaining()
        self._translate_dropout()
        self._set_trl_defaults()
        self._drop_unused()
        noted_names = self.translation.noted_names
        for name in self.content:
            if name not in noted_names:
                self.translation.note_no_effect(name, "it is the same here, or nothing reads it")
        return self.translation

    def _rename_to_current(self) -> None:
        """Rename the values to the names of TRL's version in the table, and note each name of another version."""
        for name in [name for name in self.remaining if name in OTHER_VERSIONS]:
            entry, value = OTHER_VERSIONS[name], self.remaining.pop(name)
            successor = "" if entry.successor is None else f"; now {entry.successor}"
            self.translation.note(NoteKind.ANOTHER_VERSION, name, f"{as_option_text(value)}; {entry.origin}{successor}")
            if entry.successor is not None:
                self.remaining.setdefault(entry.successor, value)
        if self._warms_up_by_ratio:
            self.remaining["warmup_steps"] = self.content["warmup_ratio"]

    @property
    def _warms_up_by_ratio(self) -> bool:
        """True if `warmup_ratio` is the length of the warm-up: transformers 4 reads it if `warmup_steps` is 0."""
        return bool(self.content.get("warmup_ratio")) and not self.content.get("warmup_steps")

    def _drop_typed(self) -> None:
        """Drop the values that typed options override or replace."""
        for name in [*self.remaining]:
            option = REPLACING_OPTIONS.get(name)
            if name in self.typed or option in self.typed:
                del self.remaining[name]
                self.translation.note_no_effect(name, "it was typed" if name in self.typed else f"{option} was typed")

    def _check_numbers(self) -> None:
        """Raise InputError for a value that enters a calculation and is not the number that it needs."""
        for name in WHOLE_NUMBERS & self.typed.keys() & SETTINGS.keys():
            check_value(SETTINGS[name], self.typed[name])
        for name, value in self.content.items():
            entry = OTHER_VERSIONS.get(name)
            current_name = name if entry is None else entry.successor
            if current_name not in self.remaining:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if current_name in WHOLE_NUMBERS and not (is_number and isinstance(value, int) and value >= 1):
                raise InputError(name, value, "expected a whole number of at least 1, as in TRL")
            if current_name in NUMBERS and not is_number:
                raise InputError(name, value, "expected a number without quotation marks, as in TRL")

    def _note_datasets(self) -> None:
        """Note that the run does not take data to download from a file; the user has to type the task."""
        for name in [name for name in DATASET_NAMES if name in self.remaining]:
            value = self.remaining.pop(name)
            task = shell_line(["--task", value]) if isinstance(value, str) else "--task OWNER/NAME"
            text = f"a file may not name what is downloaded; type {task}"
            self.translation.note_unsupported(name, text)

    def _translate_batch(self) -> None:
        """Translate the sizes of batches, of a file for one process or of a dump of TRL's configuration.

        A dump contains `generation_batch_size`, the completions of all processes in a step.
        """
        translation = self.translation
        sizes = {name: self.remaining.pop(name) for name in TRL_BATCH_SETTINGS if name in self.remaining}
        if self.typed.keys() & {*TRL_BATCH_SETTINGS}:
            for name in sizes:
                translation.note_no_effect(name, "another batch was typed")
            return
        microbatch_size = sizes.get(
            "per_device_train_batch_size", TRL_DEFAULTS_TO_TRANSLATE["per_device_train_batch_size"]
        )
        accumulation_steps = sizes.get("gradient_accumulation_steps", 1)
        steps_per_generation = sizes.get("steps_per_generation")
        batch_size = sizes.get("generation_batch_size")
        num_processes = 1
        if batch_size is None:
            microbatches = steps_per_generation or accumulation_steps
            batch_size = microbatch_size * microbatches
            text = f"{batch_size} completions per step, {microbatch_size} x {microbatches} of one process"
            translation.set_option("generation_batch_size", batch_size, text)
        else:
            if steps_per_generation:
                num_processes = max(1, batch_size // (microbatch_size * steps_per_generation))
            translation.set_option("generation_batch_size", batch_size)
        if steps_per_generation:
            translation.note(
                NoteKind.OTHER_MEANING, "steps_per_generation", f"{steps_per_generation}: in generation_batch_size"
            )
        translation.set_option("per_device_train_batch_size", microbatch_size)
        total_accumulation_steps = accumulation_steps * num_processes
        text = f"{total_accumulation_steps}: those of {num_processes} processes one after another"
        translation.set_option(
            "gradient_accumulation_steps", total_accumulation_steps, text if num_processes > 1 else None
        )

    def _updates_per_step(self) -> int:
        """Return the number of updates in a step of the run here, once the batch is translated."""
        settings = default_values(SETTINGS) | self.translation.options | self.typed
        batch_size, microbatch_size = settings["generation_batch_size"], settings["per_device_train_batch_size"]
        update_size = batch_size
        if microbatch_size is not None:
            update_size = microbatch_size * settings["gradient_accumulation_steps"]
        iterations = self.remaining.get("num_iterations", settings["num_iterations"])
        return max(1, batch_size // update_size) * iterations

    def _set_in_steps(self, name: str, updates: float) -> None:
        """Set an option to the number of steps that have this many updates, rounded up."""
        updates_per_step = self._updates_per_step()
        steps = math.ceil(updates / updates_per_step)
        text = None if updates_per_step == 1 else f"{updates} updates: {steps} steps of {updates_per_step} each"
        self.translation.set_option(name, steps, text)

    def _translate_length(self) -> None:
        """Translate the length of the training and of its warm-up, in updates, epochs or as a share of all steps."""
        max_updates = self.remaining.pop("max_steps", -1)
        epochs = self.remaining.pop("num_train_epochs", TRL_DEFAULTS_TO_TRANSLATE["num_train_epochs"])
        if max_updates > 0:
            self._set_in_steps("max_steps", max_updates)
        elif not self.typed.keys() & {"max_steps", "num_train_epochs"}:
            text = f"{epochs:g}: counted into max_steps, once the rows are known"
            self.translation.set_option("num_train_epochs", float(epochs), text)
        warmup = self.remaining.pop("warmup_steps", None)
        if warmup and (0 < warmup < 1 or self._warms_up_by_ratio):
            self.translation.options["warmup_ratio"] = warmup
            text = f"{warmup:g} of the steps: counted once these are known"
            self.translation.note(NoteKind.OTHER_MEANING, "warmup_steps", text)
        elif warmup is not None:
            self._set_in_steps("warmup_steps", warmup)

    def _translate_evaluation(self) -> None:
        """Translate how often the run evaluates: here only with a fixed number of steps in between."""
        strategy, interval = self.remaining.pop("eval_strategy", "no"), self.remaining.pop("eval_steps", None)
        if strategy == "steps":
            self.translation.note(NoteKind.OTHER_MEANING, "eval_strategy", "steps: in eval_steps")
            if interval is None:
                interval = self.remaining.get("logging_steps", TRL_DEFAULTS_TO_TRANSLATE["logging_steps"])
        elif strategy != "no":
            self.translation.note_unsupported("eval_strategy", f"{strategy}; type --eval_steps N")
        self._set_interval("eval_steps", interval, "eval_strategy", strategy)

    def _translate_saving(self) -> None:
        """Translate how often the run saves a checkpoint: here only with a fixed number of steps in between."""
        strategy, interval = self.remaining.pop("save_strategy", "steps"), self.remaining.pop("save_steps", None)
        if strategy == "no":
            self.translation.note(NoteKind.OTHER_MEANING, "save_strategy", "no: in save_steps")
            self.translation.set_option("save_steps", 0, "0: save_strategy is no")
            return
        if strategy != "steps":
            text = f"{strategy}; checkpoints are made every save_steps here"
            self.translation.note(NoteKind.OTHER_MEANING, "save_strategy", text)
        self._set_interval("save_steps", interval, "save_strategy", strategy)

    def _set_interval(self, name: str, interval: float | None, strategy_name: str, strategy: str) -> None:
        """Set the number of steps in between, which TRL reads with the strategy "steps" only."""
        if interval is None:
            return
        if strategy != "steps":
            self.translation.note_no_effect(name, f"{strategy_name} is not steps")
        elif 0 < interval < 1:
            self.translation.note_unsupported(name, f"{interval:g} of the run; type --{name} N")
        else:
            self._set_in_steps(name, interval)

    def _translate_logging(self) -> None:
        """Translate `logging_steps`, which here only decides how often completions are shown."""
        interval = self.remaining.pop("logging_steps", None)
        shows_completions = self.remaining.get("log_completions", self.typed.get("log_completions"))
        if interval is not None and shows_completions and interval >= 1:
            self._set_in_steps("logging_steps", interval)
        elif interval is not None:
            text = "metrics are written at every step, report_to says where else"
            self.translation.note_no_effect("logging_steps", text)

    def _translate_reference(self) -> None:
        """Translate how often the reference is updated; here it becomes a copy of the policy, never a mixture."""
        is_synced = self.remaining.pop("sync_ref_model", False)
        interval = self.remaining.pop("ref_model_sync_steps", TRL_DEFAULTS_TO_TRANSLATE["ref_model_sync_steps"])
        mixup_alpha = self.remaining.pop("ref_model_mixup_alpha", TRL_DEFAULTS_TO_TRANSLATE["ref_model_mixup_alpha"])
        if not is_synced:
            return
        if "ref_model_sync_steps" in self.typed:
            self.translation.note_no_effect("sync_ref_model", "ref_model_sync_steps was typed")
        else:
            self.translation.note(NoteKind.OTHER_MEANING, "sync_ref_model", "true: in ref_model_sync_steps")
            self._set_in_steps("ref_model_sync_steps", interval)
        if mixup_alpha != 1:
            text = f"{mixup_alpha:g}; the reference becomes the policy, as with 1"
            self.translation.note_unsupported("ref_model_mixup_alpha", text)

    def _drop_switched_off(self) -> None:
        """Drop options of LoRA, vLLM or vLLM's server if these are not switched on."""
        switches = self.remaining | self.typed
        for name in [*self.remaining]:
            for switch, value in _switches_of(name).items():
                if name in self.remaining and switches.get(switch) != value:
                    del self.remaining[name]
                    text = f"nothing reads it without {switch} {as_option_text(value)}"
                    self.translation.note_no_effect(name, text)

    def _translate_remaining(self) -> None:
        """Translate each remaining name by its entry in the table."""
        for name, value in self.remaining.items():
            match TRL_TABLE.get(name):
                case OurSetting(typed_instead=text) if text:
                    self.translation.note_no_effect(name, text)
                case OurSetting() | OurOption():
                    self._set_value(name, value)
                case Renamed(option):
                    self.translation.options[option] = value
                    self.translation.note(NoteKind.OTHER_MEANING, name, f"{value}: --{option}")
                case Unsupported(neutral_values, remedy):
                    if value not in neutral_values:
                        self.translation.note_unsupported(name, f"{as_option_text(value)}; {remedy}")
                case NoEffect(reason):
                    self.translation.note_no_effect(name, reason)
                case None if name in self.option_names:
                    self.translation.set_option(name, value)
                case None:
                    close_names = difflib.get_close_matches(str(name), TRL_TABLE, n=1)
                    text = f"did you mean {close_names[0]}?" if close_names else "neither TRL nor grpo_lab has it"
                    self.translation.note(NoteKind.UNKNOWN, name, text)

    def _set_value(self, name: str, value: Any) -> None:
        """Set a setting or an option that has TRL's name."""
        if name == "lr_scheduler_type" and value not in (*SCHEDULES,):
            self.translation.note_unsupported(name, f"{value}; one of {', '.join(SCHEDULES)}")
        elif name == "scale_rewards" and isinstance(value, bool):
            self.translation.set_option(name, "group" if value else "none")
        else:
            self.translation.set_option(name, value)

    def _translate_dropout(self) -> None:
        """Translate the dropout of LoRA's adapters, which is 0.05 by default in TRL and always 0 in our own loop."""
        if not self.translation.options.get("use_peft") or "lora_dropout" in self.typed:
            return
        is_in_file = "lora_dropout" in self.remaining
        trl_default = TRL_DEFAULTS_TO_TRANSLATE["lora_dropout"]
        dropout = self.remaining.get("lora_dropout", trl_default)
        if self.typed.get("engine", self.translation.options.get("engine")) == TRL or not dropout:
            if not is_in_file:
                self.translation.set_trl_default("lora_dropout", dropout)
        elif is_in_file:
            text = f"{dropout:g}; our own loop has none: --lora_dropout 0, or --engine trl"
            self.translation.note_unsupported("lora_dropout", text)
        else:
            text = f"0: our own loop has none; TRL's default is {trl_default:g}"
            self.translation.set_option("lora_dropout", 0.0, text)

    def _set_trl_defaults(self) -> None:
        """Set each setting that the file does not contain to TRL's default, if the outcome of a run depends on it."""
        for name, default in TRL_DEFAULTS_OF_RUN.items():
            if not {name, REPLACING_OPTIONS.get(name)} & {*self.translation.options, *self.typed}:
                self.translation.set_trl_default(name, default)

    def _drop_unused(self) -> None:
        """Drop settings that nothing reads, such as use_bias_correction_kl without a KL term, which TRL ignores."""
        options = self.translation.options
        config = default_values(SETTINGS)
        config |= {name: value for name, value in (options | self.typed).items() if name in SETTINGS}
        config["output_dir"] = config["output_dir"] or "anywhere"
        for name, spec in SETTINGS.items():
            if spec.choices and not isinstance(config[name], list) and config[name] not in (None, *spec.choices):
                return  # the unknown choice is refused later, when the configuration is made
        reasons = reasons_unread(SETTINGS["warmup_steps"], config, SETTINGS)
        if reasons and options.pop("warmup_ratio", None) is not None:
            self.translation.note_no_effect("warmup_steps", f"nothing reads it with {' and '.join(reasons)}")
        while True:  # without one setting, nothing may read another one
            unused = dict(unused_options(changed_values(config, SETTINGS), SETTINGS))
            unused = {name: reason for name, reason in unused.items() if name not in self.typed}
            if not unused:
                return  # a typed one is refused later
            for name, reason in unused.items():
                config[name] = SETTINGS[name].default
                del options[name]
                if name in self.translation.trl_defaults:
                    del self.translation.trl_defaults[name]
                else:
                    self.translation.note_no_effect(name, f"nothing reads it with {reason}")


def _switches_of(name: str) -> dict[str, Any]:
    """Return the values of other options without which nothing reads a name of LoRA or vLLM; {} for any other name."""
    if name.startswith("vllm_"):
        switches: dict[str, Any] = {"use_vllm": True}
    elif name.startswith("lora_") or name in ("use_rslora", "use_dora"):
        switches = {"use_peft": True}
    else:
        return {}
    return switches | (dict(ENGINE_OPTIONS[name].read_if) if name in ENGINE_OPTIONS else {})


def _wrapped(heading: str, parts: Iterable[str], ending: str = "") -> list[str]:
    """Return lines of the table: a heading, and its parts separated by commas; no lines if there are no parts."""
    parts = list(parts)
    if not parts:
        return []
    parts[-1] += ending
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 2 <= PARTS_WIDTH:
            lines[-1] += f", {part}"
        else:
            lines[-1] += ","
            lines.append(part)
    return [f"  {heading if number == 0 else '':{HEADING_WIDTH}}  {line}" for number, line in enumerate(lines)]
