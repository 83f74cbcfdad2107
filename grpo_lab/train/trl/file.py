"""Translation of a TRL configuration into options of this package.

The configuration is a YAML or JSON file for TRL's TrlParser, or the result of its `GRPOConfig.to_dict()`. Each name is
read with TRL's meaning: steps are updates, and the batch is the batch of one process. A setting that the file does not
contain gets TRL's default if the outcome of a run depends on it.
"""

import difflib
from collections.abc import Container
from typing import Any

from grpo_lab.base import shell_line
from grpo_lab.base.option import changed_values, default_values, unused_options
from grpo_lab.base.parser import as_option_text
from grpo_lab.command_options import ENGINE_OPTIONS, TRL
from grpo_lab.config import SETTINGS
from grpo_lab.config.schedules import SCHEDULES
from grpo_lab.train.trl.counts import CountTranslator
from grpo_lab.train.trl.table import (
    OPTION_NAMES,
    OTHER_VERSIONS,
    TRL_SETTINGS,
    TRL_TABLE,
    CommandOption,
    NoEffect,
    Renamed,
    TrlSetting,
    Unsupported,
    switch_of,
)
from grpo_lab.train.trl.translation import NoteKind, Translation

# Settings that a file of this package may contain and a file for TRL may not.
SETTINGS_NOT_IN_TRL = {name for name, entry in TRL_SETTINGS.items() if not entry.is_in_trl}
# Names that a typed option with another name replaces.
REPLACING_OPTIONS = {
    "max_steps": "num_train_epochs",
    "num_train_epochs": "max_steps",
    "warmup_steps": "warmup_ratio",
    "eval_strategy": "eval_steps",
    "save_strategy": "save_steps",
    "bf16": "precision",
    "fp16": "precision",
}


def is_from_trl(content: dict, option_names: Container[str]) -> bool:
    """Return True if a file is for TRL: it has a name that TRL knows and that is not an option of this command.

    content: The values in the file by name.
    option_names: Names of the options of the command.
    """
    names = {name for name, value in content.items() if value is not None}
    names_of_trl = names & TRL_TABLE.keys() - TRL_SETTINGS.keys()
    return not names & SETTINGS_NOT_IN_TRL and any(name not in option_names for name in names_of_trl)


def translate(content: dict, option_names: Container[str], typed: dict) -> Translation:
    """Translate a TRL configuration into options of the command.

    Args:
        content: The values in the file by name; a None is ignored.
        option_names: Names of the options of the command.
        typed: The options that were typed, which override the file.

    Raises:
        InputError: for a batch size that is not a positive whole number.
    """
    return _Translator(content, option_names, typed).translate()


class _Translator(CountTranslator):
    """A translator of all names in a file for TRL.

    content: The values in the file by name, without any None.
    option_names: Names of the options of the command.
    """

    def __init__(self, content: dict, option_names: Container[str], typed: dict):
        self.content = {name: value for name, value in content.items() if value is not None}
        self.option_names = option_names
        super().__init__(self.content, typed)

    def translate(self) -> Translation:
        """Translate all names, and note each of them."""
        self._rename_to_current()
        self._translate_dataset()
        self._drop_typed()
        self.translate_counts()
        self._drop_switched_off()
        self._translate_remaining()
        self._translate_dropout()
        self._set_trl_defaults()
        self._drop_unused()
        noted_names = self.translation.noted_names
        for name in self.content:
            if name not in noted_names:
                self.translation.note(NoteKind.NO_EFFECT, name, "it is the same here, or nothing reads it")
        return self.translation

    def _rename_to_current(self) -> None:
        """Rename the values to the names of TRL's version in the table, and note each name of another version."""
        for name in [name for name in self.values if name in OTHER_VERSIONS]:
            entry, value = OTHER_VERSIONS[name], self.values.pop(name)
            successor = "" if entry.successor is None else f"; now {entry.successor}"
            self.translation.note(NoteKind.ANOTHER_VERSION, name, f"{as_option_text(value)}; {entry.origin}{successor}")
            if entry.successor is not None:
                self.values.setdefault(entry.successor, value)

    def _translate_dataset(self) -> None:
        if "dataset_name" in self.values and "task" not in self.typed:
            task = shell_line(["--task", str(self.values["dataset_name"])])
            text = f"a file may not name what is downloaded; type {task}"
            self.translation.note(NoteKind.UNSUPPORTED, "dataset_name", text)

    def _drop_typed(self) -> None:
        """Drop the values that typed options override or replace."""
        for name in [*self.values]:
            option = REPLACING_OPTIONS.get(name)
            if name in self.typed or option in self.typed:
                del self.values[name]
                self.translation.note(
                    NoteKind.NO_EFFECT, name, "it was typed" if name in self.typed else f"{option} was typed"
                )

    def _drop_switched_off(self) -> None:
        """Drop options of LoRA, vLLM or vLLM's server if these are not switched on."""
        switches = self.values | self.typed
        for name in [*self.values]:
            if (switch := switch_of(name)) is None:
                continue
            read_if = {switch: True}
            if name in ENGINE_OPTIONS:
                read_if |= ENGINE_OPTIONS[name].read_if
            for needed, value in read_if.items():
                if name in self.values and switches.get(needed) != value:
                    del self.values[name]
                    text = f"nothing reads it without {needed} {as_option_text(value)}"
                    self.translation.note(NoteKind.NO_EFFECT, name, text)

    def _translate_remaining(self) -> None:
        """Translate each remaining name by its entry in the table."""
        for name, value in self.values.items():
            match TRL_TABLE.get(name):
                case TrlSetting(typed_instead=text) if text:
                    self.translation.note(NoteKind.NO_EFFECT, name, text)
                case TrlSetting() | CommandOption():
                    self._set_value(name, value)
                case Renamed(option):
                    self.translation.options[option] = value
                    self.translation.note(NoteKind.OTHER_MEANING, name, f"{value}: --{option}")
                case Unsupported(neutral_values, remedy):
                    if value not in neutral_values:
                        self.translation.note(NoteKind.UNSUPPORTED, name, f"{as_option_text(value)}; {remedy}")
                case NoEffect(reason):
                    self.translation.note(NoteKind.NO_EFFECT, name, reason)
                case None if name in self.option_names:
                    self.translation.set_option(name, value)
                case None:
                    close_names = difflib.get_close_matches(str(name), TRL_TABLE, n=1)
                    text = f"did you mean {close_names[0]}?" if close_names else "neither TRL nor grpo_lab has it"
                    self.translation.note(NoteKind.UNKNOWN, name, text)

    def _set_value(self, name: str, value: Any) -> None:
        """Set a setting or an option that has TRL's name."""
        if name == "lr_scheduler_type" and value not in SCHEDULES:
            self.translation.note(NoteKind.UNSUPPORTED, name, f"{value}; one of {', '.join(SCHEDULES)}")
        elif name == "scale_rewards" and isinstance(value, bool):
            self.translation.set_option(name, "group" if value else "none")
        else:
            self.translation.set_option(name, value)

    def _translate_dropout(self) -> None:
        """Translate the dropout of LoRA's adapters, which is 0.05 by default in TRL and always 0 in our own loop."""
        if not self.translation.options.get("use_peft") or "lora_dropout" in self.typed:
            return
        is_in_file = "lora_dropout" in self.values
        trl_default = OPTION_NAMES["lora_dropout"].default
        dropout = self.values.get("lora_dropout", trl_default)
        if self.typed.get("engine", self.translation.options.get("engine")) == TRL or not dropout:
            if not is_in_file:
                self.translation.set_trl_default("lora_dropout", dropout)
        elif is_in_file:
            text = f"{dropout:g}; our own loop has none: --lora_dropout 0, or --engine trl"
            self.translation.note(NoteKind.UNSUPPORTED, "lora_dropout", text)
        else:
            text = f"0: our own loop has none; TRL's default is {trl_default:g}"
            self.translation.set_option("lora_dropout", 0.0, text)

    def _set_trl_defaults(self) -> None:
        """Set each setting that the file does not contain to TRL's default, if the outcome of a run depends on it."""
        for name, entry in TRL_SETTINGS.items():
            replacing = {REPLACING_OPTIONS[name]} if name in REPLACING_OPTIONS else set()
            if entry.gets_trl_default and not {name, *replacing} & {*self.translation.options, *self.typed}:
                self.translation.set_trl_default(name, entry.default)

    def _drop_unused(self) -> None:
        """Drop settings that nothing reads, such as use_bias_correction_kl without a KL term, which TRL ignores."""
        options = self.translation.options
        config = default_values(SETTINGS)
        config |= {name: value for name, value in (options | self.typed).items() if name in SETTINGS}
        config["output_dir"] = config["output_dir"] or "anywhere"
        for name, spec in SETTINGS.items():
            if spec.choices and not isinstance(config[name], list) and config[name] not in (None, *spec.choices):
                return  # the unknown choice is refused later, when the configuration is made
        while unused := dict(unused_options(changed_values(config, SETTINGS), SETTINGS)):
            for name, reason in unused.items():
                config[name] = SETTINGS[name].default
                if name in options:
                    del options[name]
                    if name in self.translation.trl_defaults:
                        del self.translation.trl_defaults[name]
                    else:
                        self.translation.note(NoteKind.NO_EFFECT, name, f"nothing reads it with {reason}")
            if not unused.keys() - self.typed.keys():
                return
