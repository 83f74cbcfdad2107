"""Read the log of a run, ours or TRL's, into one form, and summarise it for the conditions of faults.

A log is a dict of metrics for each step, under the course's names. Most conditions do not look at single steps. They
compare the means over the first and over the last quarter of the steps (`trend`), and a change counts if it exceeds the
noise between steps.
"""

import contextlib
import json
import math
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from grpo_lab.base.checks import InputError, InputFileError, InputTypeError
from grpo_lab.base.files import METRICS_FILE, SETTINGS_FILE

STATE_FILE = "trainer_state.json"  # the file in which transformers' trainer saves its log
EXPECTED_SOURCE = (
    f"expected a folder of a run ({METRICS_FILE} or {STATE_FILE}), one of these files, or a list of dicts with a step "
    "each"
)
Evidence = str  # a sentence with the metrics that show a fault
MIN_STEPS = 8  # smallest number of steps from which a trend is computed
ZERO_STD, GRAD_NORM, CLIP_RATIO = "frac_reward_zero_std", "grad_norm", "clip_ratio/region_mean"
LOGP_DIFFERENCE_MEAN = "sampling/sampling_logp_difference/mean"  # a metric of TRL
MEAN_LENGTH, TRUNCATED = "completions/mean_length", "completions/clipped_ratio"


class MissingMetric(LookupError):
    """The log has too few numbers of a metric; the message is the metric's name."""


@dataclass(frozen=True)
class Log:
    """The log of a run.

    Attributes:
        rows: One dict per step, in order: "step", and floats under the names of docs/metrics.md. A metric that the log
            records as null, NaN or infinite is not finite here either.
        settings: The settings of the run that the log contains; they may be incomplete.
        name: The name of the run for messages.
    """

    rows: list[dict]
    settings: dict = field(default_factory=dict)
    name: str = "run"
    _whole_log: "Log | None" = field(default=None, repr=False, compare=False)  # the log of which this is the beginning

    @cached_property
    def _columns(self) -> "_Columns":
        return _Columns(self.rows) if self._whole_log is None else self._whole_log._columns

    def beginning(self, num_rows: int) -> "Log":
        """Return the log as it was after its first rows. It shares the columns of this log."""
        return Log(self.rows[:num_rows], self.settings, self.name, self)

    def metric_names(self) -> list[str]:
        """Return the names in the rows, in the order in which they first occur."""
        return [name for name, row in self._columns.first_row_of_metric.items() if row < len(self.rows)]

    def column(self, metric: str) -> Float[np.ndarray, " N"]:
        """Return the values of a metric, one per row; NaN for a row without it."""
        return self._columns.values(metric)[: len(self.rows)]

    def is_recorded(self, metric: str) -> Bool[np.ndarray, " N"]:
        """Return for each row whether it has the metric, finite or not."""
        return self._columns.is_recorded(metric)[: len(self.rows)]

    def points(self, metric: str, min_points: int = 0) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
        """Return the steps and values of the K rows in which a metric is finite.

        Raises:
            MissingMetric: if there are fewer than `min_points` such rows.
        """
        row_indices, steps, values = self._columns.points(metric)
        num_points = np.searchsorted(row_indices, len(self.rows))
        if num_points < min_points:
            raise MissingMetric(metric)
        return steps[:num_points], values[:num_points]

    def finite_values(self, metric: str, min_points: int = 0) -> Float[np.ndarray, " K"]:
        """Return the finite values of a metric; raises `MissingMetric` as `points` does."""
        return self.points(metric, min_points)[1]

    def has(self, metric: str) -> bool:
        """Return True if at least one row has the metric, finite or not."""
        return self._columns.first_row_of_metric.get(metric, math.inf) < len(self.rows)


class _Columns:
    """The columns of a log, each computed once, since a rule is tried on every beginning of a log.

    Attributes:
        first_row_of_metric: {metric: index of the first row with it}, in the order in which the metrics first occur.
    """

    def __init__(self, rows: list[dict]):
        self._rows = rows
        self.first_row_of_metric: dict[str, int] = {}
        for index, row in enumerate(rows):
            for metric in row:
                self.first_row_of_metric.setdefault(metric, index)
        self.values = cache(self._values)
        self.is_recorded = cache(self._is_recorded)
        self.points = cache(self._points)

    def _values(self, metric: str) -> np.ndarray:
        return np.array([row.get(metric, math.nan) for row in self._rows], dtype=float)

    def _is_recorded(self, metric: str) -> np.ndarray:
        return np.array([metric in row for row in self._rows], dtype=bool)

    def _points(self, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the indices of the rows in which a metric is finite, with their steps and values."""
        values = self.values(metric)
        row_indices = np.flatnonzero(np.isfinite(values))
        return row_indices, self.values("step")[row_indices], values[row_indices]


def read_log(source, settings: dict | None = None) -> Log:
    """Read the log of a run from a folder, a file or a list of dicts.

    Args:
        source: The folder of a run of this package, or of TRL (the newest trainer_state.json is read); a file
            metrics.jsonl or trainer_state.json; or a list of dicts, such as TRL's `trainer.state.log_history`.
        settings: Settings of the run, such as `precision` and `num_iterations`; they take precedence over the settings
            that the log contains.

    Raises:
        FileNotFoundError: if there is no such path, or no log in the folder.
        ValueError: if the file is not a log, or the log has no steps or no numbers.
        TypeError: if the source is of another kind.
    """
    if isinstance(source, str | Path):
        rows, saved_settings = _from_path(Path(source))
        name = str(source)
    elif isinstance(source, list) and all(isinstance(row, dict) for row in source):
        rows = source
        saved_settings = {}
        name = "run"
    else:
        raise InputTypeError("source", source, EXPECTED_SOURCE, problem=f"is of type {type(source).__name__}")
    return Log(_by_step(rows, name), saved_settings | (settings or {}), name)


def _from_path(path: Path) -> tuple[list, dict]:
    """Return the rows and the settings in a folder or file."""
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise InputFileError("source", path, EXPECTED_SOURCE, problem=f"{str(path)!r} does not exist")
    if path.suffix not in (".json", ".jsonl"):
        raise InputError("source", str(path), EXPECTED_SOURCE)
    if path.suffix == ".jsonl":
        return [_parse_json(line, path) for line in complete_lines(path.read_bytes())], {}
    state = _parse_json(path.read_bytes(), path)
    if not isinstance(state, dict) or "log_history" not in state:
        problem = f"{str(path)!r} has no 'log_history'"
        raise InputError("source", path, f"expected a {STATE_FILE}", problem=problem)
    return state["log_history"], {}


def _parse_json(data: bytes, path: Path) -> Any:
    """Return the value of a JSON text; raise InputError with the path of its file if it is none."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise InputError("source", path, problem=f"is {str(path)!r}, which cannot be read as JSON: {error}") from error


def complete_lines(data: bytes) -> list[bytes]:
    """Split a file into lines, without a truncated last line.

    The file is split as bytes, because `str.splitlines` would also split at the character U+2028, which JSON allows
    inside a line.
    """
    *lines, last_line = data.split(b"\n")
    with contextlib.suppress(ValueError):
        if last_line and json.loads(last_line):
            lines.append(last_line)
    return [line for line in lines if line.strip()]


def _from_folder(folder: Path) -> tuple[list, dict]:
    if (folder / METRICS_FILE).is_file():
        rows, _ = _from_path(folder / METRICS_FILE)
        settings_file = folder / SETTINGS_FILE
        return rows, _parse_json(settings_file.read_bytes(), settings_file) if settings_file.is_file() else {}
    if state_files := [*folder.glob(STATE_FILE), *folder.glob(f"checkpoint-*/{STATE_FILE}")]:
        return _from_path(max(state_files, key=lambda path: path.stat().st_mtime))
    expected = f"expected {METRICS_FILE} or {STATE_FILE}"
    raise InputFileError("source", folder, expected, problem=f"is {str(folder)!r}, which holds no log")


def _by_step(rows: list, name: str) -> list[dict]:
    """Merge the rows of the same step, rename TRL's metrics to ours, and sort by step."""
    steps: dict[Any, dict] = {}
    for row in rows:
        if not isinstance(row, dict) or row.get("step") is None:
            raise InputError("source", row, "expected 'step'", problem=f"{name!r} has a row without: {str(row)[:80]}")
        if not isinstance(row["step"], Real) or isinstance(row["step"], bool) or not math.isfinite(row["step"]):
            problem = f"{name!r} has a row with the step {row['step']!r:.60}"
            raise InputError("source", row, "expected a number", problem=problem)
        # TRL's names of held-out metrics become ours.
        values = {
            re.sub("^eval_", "eval/", metric): _to_float(value) for metric, value in row.items() if metric != "step"
        }
        steps.setdefault(row["step"], {}).update(
            {metric: value for metric, value in values.items() if value is not None}
        )
    if not any(math.isfinite(value) for values in steps.values() for value in values.values()):
        raise InputError(
            "source", name, "expected the metrics of at least one step", problem=f"{name!r} holds no numbers"
        )
    return [{"step": step} | steps[step] for step in sorted(steps)]


def _to_float(value) -> float | None:
    """Convert a value of the log to a float: null, which stands for NaN or infinity, to NaN; a non-number to None."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return None


class Trend(NamedTuple):
    """The change of a metric from the first to the last quarter of the steps."""

    metric: str
    first: float  # mean over the first quarter
    last: float  # mean over the last quarter
    change: float  # last - first
    standard_error: float  # standard error of the change, estimated from the differences of neighbouring steps
    rises: bool  # True if the change is more than three standard errors above 0

    def __str__(self) -> str:
        return f"{self.metric} goes from {self.first:.3g} in the first quarter to {self.last:.3g} in the last"


def trend(log: Log, metric: str) -> Trend:
    """Compare the mean of a metric over the first quarter of the steps with its mean over the last quarter."""
    values = log.finite_values(metric, MIN_STEPS)
    if metric == ZERO_STD:  # for TRL, rounding errors of equal rewards count as a spread; here they do not
        is_rounding = (log.column("reward_std") < 1e-6) | (log.column(GRAD_NORM) < 1e-3)
        values = np.where(is_rounding[np.isfinite(log.column(metric))], 1.0, values)
    quarter = len(values) // 4
    first, last = values[:quarter].mean(), values[-quarter:].mean()
    # A difference of two steps has twice the variance of a step; a difference of two means, twice that of a mean.
    standard_error = np.diff(values).std() / quarter**0.5
    return Trend(metric, first, last, last - first, standard_error, last - first > 3 * standard_error)


def reward_mean_metrics(log: Log) -> list[str]:
    """Return the metrics of the reward functions with a nonzero weight, such as "rewards/format_reward/mean".

    If none of them has a number in `MIN_STEPS` steps, return ["reward"].
    """
    names = [name for name in log.metric_names() if name.startswith("rewards/") and name.endswith("/mean")]
    weights = log.settings.get("reward_weights") or []
    # The reward of an environment, which is the last one, has no weight in the settings; it counts once.
    weights = [*weights, *[1.0] * (len(names) - len(weights))]
    counted = [name for name, weight in zip(names, weights, strict=False) if weight]
    return [name for name in counted if len(log.finite_values(name)) >= MIN_STEPS] or ["reward"]


def last_rewards(log: Log) -> list[float]:
    """Return the mean of each reward function over the last quarter of the steps."""
    return [trend(log, name).last for name in reward_mean_metrics(log)]


def is_solved(log: Log) -> bool:
    """Return True if each reward function has a mean of at least 0.9 in the last quarter; 1 is taken as its maximum."""
    return min(last_rewards(log)) >= 0.9


def updates_per_rollout(log: Log) -> int | None:
    """Return the number of updates per rollout; None if the settings, ours or TRL's, lack `num_iterations`."""
    settings = log.settings
    if "num_iterations" not in settings:
        return None
    accumulation_steps = settings.get("gradient_accumulation_steps") or 1
    update_rows = (settings.get("per_device_train_batch_size") or 0) * accumulation_steps
    rollout_rows = settings.get("generation_batch_size") or update_rows
    updates_per_pass = settings.get("steps_per_generation") or 0  # a setting of TRL; for our runs computed from sizes
    if not updates_per_pass and update_rows:
        updates_per_pass = rollout_rows // update_rows
    return settings["num_iterations"] * max(updates_per_pass, 1)


def usually_above(log: Log, metric: str, limit: float) -> Evidence | None:
    """Return the evidence that a metric is above a limit in the median step; None if it is not."""
    median = np.median(log.finite_values(metric, 3))
    return f"{metric} is {median:.2g} in the median step (at most {limit:g} expected)" if median > limit else None


def is_policy_unchanged(log: Log) -> bool:
    """Return True if neither the policy nor the reward changes although groups have unequal rewards.

    A change of the policy is judged by the KL, or, if the log has no KL other than 0, by the entropy and the length.
    """
    zero_std, reward = trend(log, ZERO_STD), trend(log, "reward")
    if zero_std.last > 0.9 or reward.change > 2 * reward.standard_error or reward.change < -3 * reward.standard_error:
        return False
    if np.median(log.finite_values(CLIP_RATIO) if log.has(CLIP_RATIO) else 0) > 0.01:
        return False
    if log.finite_values("kl").any():
        kl = trend(log, "kl")
        return kl.last < 1e-4 or (kl.last < 0.01 and kl.last < 1.5 * np.median(log.finite_values("kl")[1:MIN_STEPS]))
    trends = [trend(log, name) for name in ("entropy", MEAN_LENGTH) if log.has(name)]
    for metric_trend in trends:
        first = metric_trend.first
        detectable = max(3 * metric_trend.standard_error, 0.02 * first)  # smallest change that the noise does not hide
        if detectable > 0.05 * first or abs(metric_trend.change) >= detectable:
            return False
    return bool(trends)
