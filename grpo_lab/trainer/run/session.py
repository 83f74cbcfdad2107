"""An open run, the same with both engines: the records of its steps, and the signals that stop it.

After Ctrl-C or SIGTERM the current step is finished and saved; a second signal stops at once. In a notebook, the button
that interrupts the kernel sends the same signal as Ctrl-C.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

from tqdm import tqdm

from grpo_lab.base import Stopped
from grpo_lab.base.files import COMPLETIONS_FILE, METRICS_FILE
from grpo_lab.base.process_state import restored_random_state
from grpo_lab.trainer.metrics import merge_metrics
from grpo_lab.trainer.run.folder import RESUME_INSTRUCTION, RunFolder
from grpo_lab.trainer.run.inputs import RunInputs
from grpo_lab.trainer.run.reports import Reports, best_and_worst, open_reports

RESUME_HINT = f"Go on with {RESUME_INSTRUCTION} and everything else as it was."
SIGNAL_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@contextmanager
def open_session(
    inputs: RunInputs,
    history: list[dict],
    folder: RunFolder | None,
    saved_options: dict,
    *,
    catches_signals: bool = True,
) -> "Iterator[Session]":
    """Catch signals and open the reports of a run; at its end, save the trained model into the folder.

    A run that fails does not save the model. In every case all resources are closed, and the random state is restored.

    Args:
        inputs: The inputs of the run.
        history: The metrics of the steps that a resumed run has completed already; empty for a new run.
        folder: The opened folder of the run. None: this process writes no files.
        saved_options: Options of the command that are saved with the settings.
        catches_signals: Whether the first Ctrl-C or SIGTERM lets the current step end.

    Raises:
        Stopped: at the end, if a signal was received in the last step or while the model was written.
    """
    stop_signals = StopSignals(None if folder is None else folder.describe_saved)
    with stop_signals if catches_signals else nullcontext():
        with open_reports(inputs.config, history, saved_options) as reports, restored_random_state():
            session = Session(inputs, history, folder, reports, stop_signals)
            try:
                yield session
            finally:
                session.is_open = False
        # The folder is still locked here, and a first signal does not interrupt the writing.
        if folder is not None:
            folder.save_model(session.trained_model, inputs.tokenizer)
        if stop_signals.received:
            stop_signals.raise_stopped("after its last step")


class Session:
    """An open run, with either engine: it records the steps, and knows when a signal stops the run.

    Args:
        inputs: The inputs of the run.
        history: The metrics of the steps before the run was resumed; empty for a new run.
        folder: The opened folder of the run. None: nothing is written to files.
        reports: The progress bar and the trackers of the run.
        stop_signals: The signals received so far.

    Attributes:
        history: The metrics of each completed step; `record` appends those of one more.
        folder: The folder of the run, or None.
        trained_model: The model that is saved at the end of the run, as `RunFolder.save_model` takes it; an engine that
            divides the model among processes replaces it after the last step.
        is_open: False once the run has ended.
    """

    def __init__(
        self,
        inputs: RunInputs,
        history: list[dict],
        folder: RunFolder | None,
        reports: Reports,
        stop_signals: "StopSignals",
    ):
        self.history = history
        self.folder = folder
        self.trained_model: Any = inputs.model
        self.is_open = True
        self._max_steps = inputs.config.max_steps
        self._reports = reports
        self._stop_signals = stop_signals
        self._step_started = time.perf_counter()

    def start_step(self) -> None:
        """Start the time of a step, which `record` adds as "step_time"."""
        self._step_started = time.perf_counter()

    def write_completions(self, records: list[dict]) -> None:
        """Print the best and the worst completion of a step, and write all records to completions.jsonl."""
        tqdm.write(best_and_worst(records))
        if self.folder is not None:
            self.folder.append(COMPLETIONS_FILE, records)

    def record(self, metrics: dict) -> dict:
        """Record the metrics of the step that ends: in the history, the folder, the progress bar and the trackers.

        Returns:
            The metrics, with "step" first and "step_time" last; "step" is the number of completed steps, this one
            included.

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

    @property
    def must_stop(self) -> bool:
        """True if a signal was received and steps remain; after the last step, the run ends in any case."""
        return self._stop_signals.received and len(self.history) < self._max_steps

    def stop(self) -> NoReturn:
        """Raise Stopped after a step, whose checkpoint the caller has saved."""
        self._stop_signals.raise_stopped(f"after step {len(self.history)} of {self._max_steps}")


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
            for number in SIGNAL_NAMES:
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

    def raise_stopped(self, moment: str) -> NoReturn:
        """Raise Stopped; its message names the signal, the moment, such as "after step 3 of 9", and what is saved."""
        outcome = "Nothing is saved (output_dir is None); the model has the weights of this moment."
        resume_hint = None
        if self._describe_saved is not None:
            outcome, resume_hint = self._describe_saved(), RESUME_HINT
        assert self.last_signal is not None  # without a signal there is nothing to stop for
        raise Stopped(
            f"Stopped {moment} by {SIGNAL_NAMES[self.last_signal]}. {outcome}", 128 + self.last_signal, resume_hint
        )

    def _handle_signal(self, number: int, frame) -> None:
        is_second = self.received
        self.last_signal = signal.Signals(number)
        if is_second:
            self.raise_stopped("at once, in the middle of a step,")
        with contextlib.suppress(RuntimeError):  # raised if the signal interrupted another print
            name = SIGNAL_NAMES[self.last_signal]
            print(f"\n{name}: finishing this step; a second one stops at once", file=sys.stderr)
