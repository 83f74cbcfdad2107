"""The life of a run, the same with both engines: from the lock of its folder to its trained model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from grpo_lab.base.random_state import restored_random_state
from grpo_lab.config import GRPOConfig
from grpo_lab.rollout.model import training_mode
from grpo_lab.trainer.run.folder import RunFolder
from grpo_lab.trainer.run.folder.checkpoint import check_savable
from grpo_lab.trainer.run.reports import open_reports
from grpo_lab.trainer.run.step_log import StepLog
from grpo_lab.trainer.run.stopping import StopSignals


@dataclass(frozen=True)
class Session:
    """An open run, with either engine: its log and its stop signals.

    Attributes:
        log: The log of the steps, with the history and the folder.
        stop_signals: The signals received so far.
    """

    log: StepLog
    stop_signals: StopSignals

    def stop_if_signal_received(self, save_checkpoint: Callable[[], None] | None = None) -> None:
        """Raise Stopped if a signal was received and steps remain; after the last step, `open_session` does so.

        save_checkpoint: Function that saves the completed steps before. None: the engine has saved them already.
        """
        completed_steps, max_steps = len(self.log.history), self.log.config.max_steps
        if self.stop_signals.received and completed_steps < max_steps:
            if save_checkpoint is not None:
                save_checkpoint()
            self.stop_signals.raise_stopped(f"after step {completed_steps} of {max_steps}")


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
) -> Iterator[Session]:
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
