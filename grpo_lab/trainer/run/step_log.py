"""The log of a run's steps, which both engines write by the same class, so that their runs have the same files."""

import time

from tqdm import tqdm

from grpo_lab.base.files import COMPLETIONS_FILE, METRICS_FILE
from grpo_lab.config import GRPOConfig
from grpo_lab.trainer.metrics import merge_metrics
from grpo_lab.trainer.run.folder import RunFolder
from grpo_lab.trainer.run.reports import Reports, best_and_worst


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
