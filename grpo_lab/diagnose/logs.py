"""Read the log of a run, ours or TRL's, into one form: a dict of metrics for each step, under the course's names."""

import contextlib
import json
import math
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from grpo_lab.base.checks import InputError, InputFileError, InputTypeError
from grpo_lab.base.files import METRICS_FILE, SETTINGS_FILE

STATE_FILE = "trainer_state.json"  # the file in which transformers' trainer saves its log
EXPECTED_SOURCE = (
    f"expected a folder of a run ({METRICS_FILE} or {STATE_FILE}), one of these files, or a list of dicts with a step "
    "each"
)


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
        return [name for name, row in self._columns.first_rows.items() if row < len(self.rows)]

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
        return self._columns.first_rows.get(metric, math.inf) < len(self.rows)


class _Columns:
    """The columns of a log, each computed once, since a rule is tried on every beginning of a log.

    Attributes:
        first_rows: {metric: index of the first row with it}, in the order in which the metrics first occur.
    """

    def __init__(self, rows: list[dict]):
        self._rows = rows
        self.first_rows: dict[str, int] = {}
        for index, row in enumerate(rows):
            for metric in row:
                self.first_rows.setdefault(metric, index)
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
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in complete_lines(path.read_bytes())], {}
        return json.loads(path.read_bytes())["log_history"], {}
    except ValueError as error:
        raise InputError("source", path, problem=f"is {str(path)!r}, which cannot be read as JSON: {error}") from error
    except (KeyError, TypeError) as error:
        problem = f"{str(path)!r} has no 'log_history'"
        raise InputError("source", path, f"expected a {STATE_FILE}", problem=problem) from error


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
        return rows, json.loads(settings_file.read_bytes()) if settings_file.is_file() else {}
    if state_files := [*folder.glob(STATE_FILE), *folder.glob(f"checkpoint-*/{STATE_FILE}")]:
        return _from_path(max(state_files, key=lambda path: path.stat().st_mtime))
    expected = f"expected {METRICS_FILE} or {STATE_FILE}"
    raise InputFileError("source", folder, expected, problem=f"is {str(folder)!r}, which holds no log")


def _by_step(rows: list, name: str) -> list[dict]:
    """Merge the rows of the same step, rename TRL's metrics to ours, and sort by step."""
    steps: dict[int, dict] = {}
    for row in rows:
        if not isinstance(row, dict) or row.get("step") is None:
            raise InputError("source", row, "expected 'step'", problem=f"{name!r} has a row without: {str(row)[:80]}")
        # TRL's names of held-out metrics become ours.
        values = {
            re.sub("^eval_", "eval/", metric): _number(value) for metric, value in row.items() if metric != "step"
        }
        steps.setdefault(row["step"], {}).update(
            {metric: value for metric, value in values.items() if value is not None}
        )
    if not any(math.isfinite(value) for values in steps.values() for value in values.values()):
        raise InputError(
            "source", name, "expected the metrics of at least one step", problem=f"{name!r} holds no numbers"
        )
    return [{"step": step} | steps[step] for step in sorted(steps)]


def _number(value) -> float | None:
    """Convert a value of the log to a float: null, which stands for NaN or infinity, to NaN; a non-number to None."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return None
