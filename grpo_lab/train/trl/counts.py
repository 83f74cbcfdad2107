"""Translation of the names in a file for TRL that count rows, updates or epochs.

TRL counts updates where this package counts steps, one per rollout, and its batch is the batch of one process.
"""

import math
from typing import Any

from grpo_lab.base.checks import InputError
from grpo_lab.base.option import default_values
from grpo_lab.config import SETTINGS
from grpo_lab.train.trl.table import CONVERTED_NAMES, TRL_SETTINGS, Converted
from grpo_lab.train.trl.translation import NoteKind, Translation

TRL_BATCH_SETTINGS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
)


def _default_of_converted(name: str) -> Any:
    entry = CONVERTED_NAMES[name]
    assert isinstance(entry, Converted)
    return entry.default


class CountTranslator:
    """A translator of the names that count rows, updates or epochs.

    values: The values that are not translated yet, by name; each method removes its own.
    typed: The options that were typed, which override the file.
    translation: What is translated.
    """

    def __init__(self, values: dict, typed: dict):
        self.values = dict(values)
        self.typed = typed
        self.translation = Translation()

    def translate_counts(self) -> None:
        """Translate the batch, and then the settings that TRL counts in updates."""
        self._translate_batch()
        self._translate_length()
        self._translate_evaluation()
        self._translate_saving()
        self._translate_logging()
        self._translate_reference()

    def _translate_batch(self) -> None:
        """Translate the sizes of batches, of a file for one process or of a dump of TRL's configuration.

        A dump contains `generation_batch_size`, the completions of all processes in a step.
        """
        translation = self.translation
        sizes = {name: self.values.pop(name) for name in TRL_BATCH_SETTINGS if name in self.values}
        for name, value in sizes.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(name, value, "expected a whole number of at least 1, as in TRL")
        if self.typed.keys() & {*TRL_BATCH_SETTINGS}:
            for name in sizes:
                translation.note(NoteKind.NO_EFFECT, name, "another batch was typed")
            return
        microbatch_size = sizes.get("per_device_train_batch_size", TRL_SETTINGS["per_device_train_batch_size"].default)
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
        iterations = self.values.get("num_iterations", settings["num_iterations"])
        return max(1, batch_size // update_size) * iterations

    def _set_in_steps(self, name: str, updates: float) -> None:
        """Set an option to the number of steps that have this many updates, rounded up."""
        updates_per_step = self._updates_per_step()
        steps = math.ceil(updates / updates_per_step)
        text = None if updates_per_step == 1 else f"{updates} updates: {steps} steps of {updates_per_step} each"
        self.translation.set_option(name, steps, text)

    def _translate_length(self) -> None:
        """Translate the length of the training and of its warm-up, in updates, epochs or as a share of all steps."""
        max_updates = self.values.pop("max_steps", -1)
        epochs = self.values.pop("num_train_epochs", _default_of_converted("num_train_epochs"))
        if max_updates > 0:
            self._set_in_steps("max_steps", max_updates)
        elif not self.typed.keys() & {"max_steps", "num_train_epochs"}:
            text = f"{epochs:g}: counted into max_steps, once the rows are known"
            self.translation.set_option("num_train_epochs", float(epochs), text)
        warmup = self.values.pop("warmup_steps", None)
        if warmup is not None and 0 < warmup < 1:
            self.translation.options["warmup_ratio"] = warmup
            text = f"{warmup:g} of the steps: counted once these are known"
            self.translation.note(NoteKind.OTHER_MEANING, "warmup_steps", text)
        elif warmup is not None:
            self._set_in_steps("warmup_steps", warmup)

    def _translate_evaluation(self) -> None:
        """Translate how often the run evaluates: here only with a fixed number of steps in between."""
        strategy, interval = self.values.pop("eval_strategy", "no"), self.values.pop("eval_steps", None)
        if strategy == "steps":
            self.translation.note(NoteKind.OTHER_MEANING, "eval_strategy", "steps: in eval_steps")
            if interval is None:
                interval = self.values.get("logging_steps", TRL_SETTINGS["logging_steps"].default)
        elif strategy != "no":
            self.translation.note(NoteKind.UNSUPPORTED, "eval_strategy", f"{strategy}; type --eval_steps N")
        self._set_interval("eval_steps", interval, "eval_strategy", strategy)

    def _translate_saving(self) -> None:
        """Translate how often the run saves a checkpoint: here only with a fixed number of steps in between."""
        strategy, interval = self.values.pop("save_strategy", "steps"), self.values.pop("save_steps", None)
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
            self.translation.note(NoteKind.NO_EFFECT, name, f"{strategy_name} is not steps")
        elif 0 < interval < 1:
            self.translation.note(NoteKind.UNSUPPORTED, name, f"{interval:g} of the run; type --{name} N")
        else:
            self._set_in_steps(name, interval)

    def _translate_logging(self) -> None:
        """Translate `logging_steps`, which here only decides how often completions are shown."""
        interval = self.values.pop("logging_steps", None)
        shows_completions = self.values.get("log_completions", self.typed.get("log_completions"))
        if interval is not None and shows_completions and interval >= 1:
            self._set_in_steps("logging_steps", interval)
        elif interval is not None:
            text = "metrics are written at every step, report_to says where else"
            self.translation.note(NoteKind.NO_EFFECT, "logging_steps", text)

    def _translate_reference(self) -> None:
        """Translate how often the reference is updated; here it becomes a copy of the policy, never a mixture."""
        is_synced = self.values.pop("sync_ref_model", False)
        interval = self.values.pop("ref_model_sync_steps", TRL_SETTINGS["ref_model_sync_steps"].default)
        mixup_alpha = self.values.pop("ref_model_mixup_alpha", _default_of_converted("ref_model_mixup_alpha"))
        if not is_synced:
            return
        if "ref_model_sync_steps" in self.typed:
            self.translation.note(NoteKind.NO_EFFECT, "sync_ref_model", "ref_model_sync_steps was typed")
        else:
            self.translation.note(NoteKind.OTHER_MEANING, "sync_ref_model", "true: in ref_model_sync_steps")
            self._set_in_steps("ref_model_sync_steps", interval)
        if mixup_alpha != 1:
            text = f"{mixup_alpha:g}; the reference becomes the policy, as with 1"
            self.translation.note(NoteKind.UNSUPPORTED, "ref_model_mixup_alpha", text)
