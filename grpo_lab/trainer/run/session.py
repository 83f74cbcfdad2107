"""The life of a run, the same with both engines: from the lock of its folder to its trained model.

A session has the log of the steps and the signals that stop the run. After Ctrl-C or SIGTERM the current step is
finished and saved; a second signal stops at once. In a notebook, the button that interrupts the kernel sends the same
signal as Ctrl-C.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from grpo_lab.base import Stopped
from grpo_lab.base.files import COMPLETIONS_FILE, METRICS_FILE
from grpo_lab.base.process_state import restored_random_state
from grpo_lab.config import GRPOConfig
from grpo_lab.rollout.model import training_mode
from grpo_lab.trainer.metrics import merge_metrics
from grpo_lab.trainer.run.checkpoint import check_savable
from grpo_lab.trainer.run.folder import RESUME, RunFolder
from grpo_lab.trainer.run.reports import Reports, best_and_worst, open_reports

RESUME_HINT = f"Go on with {RESUME} and everything else as it was."
SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@contextmanager
def open_session(
    model,
    tokenizer,
    config: GRPOConfig,
    folder: RunFolder | None,
    open_folder: Callable[[RunFolder], list[dict]],
    *,
    saved_options: dict,
    in_training_mode: bool,
    get_trained_model: Callable[[], Any],
    catches_signals: bool = True,
) -> "Iterator[Session]":
    """Lock the folder, load the checkpoint, catch signals, open the reports; at the end, save the trained model.

    A run that fails does not save the model. In every case all resources are closed, and the random state and the mode
    of the model are restored.

    Args:
        model, tokenizer, config: The policy, its tokenizer and the settings of the run.
        folder: The folder of the run. None: this process writes no files.
        open_folder: Function that opens the locked folder and returns the metrics of each completed step.
        saved_options: Options of the command that are saved with the settings.
        in_training_mode: Whether the model is in training mode during the steps.
        get_trained_model: Function that returns the trained model, as `RunFolder.save_model` takes it. It is called in
            every process after the last step, also without a folder.
        catches_signals: Whether the first Ctrl-C or SIGTERM lets the current step end.

    Raises:
        Stopped: at the end, if a signal was received in the last step or while the model was written.
    """
    if folder is not None:
        check_savable(model, tokenizer)
    with folder or nullcontext():
        history = [] if folder is None else open_folder(folder)
        stop_signals = StopSignals(None if folder is None else folder.describe_saved)
        with stop_signals if catches_signals else nullcontext():
            with (
                open_reports(config, history, saved_options) as reports,
                restored_random_state(),
                training_mode(model, in_training_mode),
            ):
                yield Session(StepLog(config, history, folder, reports), stop_signals)
            # The folder is still locked here, and a first signal does not interrupt the writing.
            trained_model = get_trained_model()
            if folder is not None:
                folder.save_model(trained_model, tokenizer)
            if stop_signals.received:
                stop_signals.raise_stopped("after its last step")


@dataclass(frozen=True)
class Session:
    """An open run, with either engine: its log and its stop signals.

    Attributes:
        log: The log of the steps, with the history and the folder.
        stop_signals: The signals received so far.
    """

    log: "StepLog"
    stop_signals: "StopSignals"

    def stop_if_signal_received(self, save_checkpoint: Callable[[], None] | None = None) -> None:
        """Raise Stopped if a signal was received and steps remain; after the last step, `open_session` does so.

        save_checkpoint: Function that saves the completed steps before. None: the engine has saved them already.
        """
        completed_steps, max_steps = len(self.log.history), self.log.config.max_steps
        if self.stop_signals.received and completed_steps < max_steps:
            if save_checkpoint is not None:
                save_checkpoint()
            self.stop_signals.raise_stopped(f"after step {completed_steps} of {max_steps}")


class StepLog:
    """Recorder of the metrics of each step: in the history, the folder, the progress bar and the trackers.

    Args:
        config: The settings of the run.
        history: The metrics of each completed step, at first of those before the run was resumed; `add` appends.
        folder: The opened folder of the run. None: nothing is written to files.
        reports: The progress bar and the trackers of the run.
    """

    def __init__(self, config: GRPOConfig, history: list[dict], folder: RunFolder | None, reports: Reports):
        self.config = config
        self.history = history
        self.folder = folder
        self._reports = reports
        self._step_started = time.perf_counter()

    def start_step(self) -> None:
        """Start the time of a step, which `add` records as "step_time"."""
        self._step_started = time.perf_counter()

    def write_completions(self, records: list[dict]) -> None:
        """Print the best and the worst completion of a step, and write all records to completions.jsonl."""
        tqdm.write(best_and_worst(records))
        if self.folder is not None:
            self.folder.append(COMPLETIONS_FILE, records)

    def add(self, metrics: dict) -> dict:
        """Record the metrics of the step that ends; return them with "step" first and "step_time" last.

        "step" is the number of completed steps, this one included.

        Raises:
            RunError: if the metrics have one of these two names already.
        """
        step_time = time.perf_counter() - self._step_started
        metrics = merge_metrics({"step": len(self.history) + 1}, metrics, {"step_time": step_time})
        self.history.append(metrics)
        if self.folder is not None:
            self.folder.append(METRICS_FILE, [metrics])
        self._reports.show(metrics)
        return metrics


class StopSignals:
    """Context manager that records the first Ctrl-C or SIGTERM, and raises Stopped on the second.

    Outside the main thread it does nothing, since Python delivers signals to the main thread.

    describe_saved: Function that returns a sentence about the newest checkpoint. None: the run saves nothing.
    """

    def __init__(self, describe_saved: Callable[[], str] | None):
        self._describe_saved = describe_saved
        self.last_signal: signal.Signals | None = None  # None before the first one
        self._previous_handlers: dict = {}  # the handlers before this object's, by signal

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Skipped if the signal is ignored on purpose (nohup), or if its handler was not installed by Python.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous_handlers[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, *details):
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    @property
    def received(self) -> bool:
        """True once a signal was received, so that the run has to stop."""
        return self.last_signal is not None

    def raise_stopped(self, moment: str) -> None:
        """Raise Stopped; its message names the signal, the moment, such as "after step 3 of 9", and what is saved."""
        outcome = "Nothing is saved (output_dir is None); the model has the weights of this moment."
        resume_hint = None
        if self._describe_saved is not None:
            outcome, resume_hint = self._describe_saved(), RESUME_HINT
        assert self.last_signal is not None  # without a signal there is nothing to stop for
        raise Stopped(
            f"Stopped {moment} by {SIGNALS[self.last_signal]}. {outcome}", 128 + self.last_signal, resume_hint
        )

    def _handle_signal(self, number: int, frame) -> None:
        is_second = self.received
        self.last_signal = signal.Signals(number)
        if is_second:
            self.raise_stopped("at once, in the middle of a step,")
        with contextlib.suppress(RuntimeError):  # raised if the signal interrupted another print
            name = SIGNALS[self.last_signal]
            print(f"\n{name}: finishing this step; a second one stops at once", file=sys.stderr)
