"""TRL's arguments of reward functions: `log_metric` and `log_extra` to log, `trainer_state` to read."""

import json
import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch

from grpo_lab.base.checks import InputError, RunError


class RewardLog:
    """The numbers and columns that the reward functions of one batch log.

    Args:
        trainer_state: The progress of the run, with the attributes of transformers' TrainerState (`global_step`,
            `max_steps`). None outside a run: then the argument `trainer_state` is not passed to reward functions.
    """

    def __init__(self, trainer_state: Any = None):
        self._state = trainer_state
        self._values: dict[str, list[float]] = {}
        self._columns: dict[str, list] = {}

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments that reward functions receive for logging."""
        state = {} if self._state is None else {"trainer_state": self._state}
        return state | {"log_metric": self.log_metric, "log_extra": self.log_extra}

    def log_metric(self, name: str, value: float) -> None:
        """Log a number under this name in `metrics.jsonl`; of several numbers in a batch, the mean is written."""
        number = value.item() if hasattr(value, "item") else value
        if not isinstance(name, str) or not isinstance(number, numbers.Real):
            problem = f"was called with {name!r:.60} and {value!r:.60}"
            raise InputError("log_metric", value, "expected a text and a number", problem=problem)
        self._values.setdefault(name, []).append(float(number))

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Log a value for each completion under this name in `completions.jsonl`."""
        try:
            values = values.tolist() if hasattr(values, "tolist") else list(values)
            json.dumps([column, *values])
        except (TypeError, ValueError) as error:
            problem = f"was called with {column!r:.60} and {values!r:.60}"
            expected = "expected a text and a list of numbers, texts, or lists of these, one for each completion"
            raise InputError("log_extra", values, expected, problem=problem) from error
        self._columns.setdefault(str(column), []).extend(values)

    def metrics(self) -> dict[str, float | None]:
        """Return the mean of each logged number, or None instead of NaN."""
        means = {name: sum(values) / len(values) for name, values in self._values.items()}
        return {name: None if math.isnan(mean) else mean for name, mean in means.items()}

    def check_columns(self, num_completions: int) -> None:
        """Raise RunError if a logged column does not have one value for each of the completions."""
        for name, values in self._columns.items():
            if len(values) != num_completions:
                problem = f"got {len(values)} values for {name!r}"
                expected = f"expected {num_completions}, one for each completion"
                raise RunError("log_extra", values, expected, problem=problem)

    def columns(self, num_completions: int) -> "LoggedColumns":
        """Return the logged columns, after `check_columns`."""
        self.check_columns(num_completions)
        return LoggedColumns(self._columns)


class LoggedColumns:
    """The columns that reward functions logged, with one value per completion; `columns[rows]` selects rows."""

    def __init__(self, values: dict[str, list]):
        self.values = values

    def __getitem__(self, rows: slice | torch.Tensor) -> "LoggedColumns":
        num_rows = max(map(len, self.values.values()), default=0)
        if not num_rows:
            return self
        indices = torch.arange(num_rows)[rows if isinstance(rows, slice) else rows.cpu()].tolist()
        return LoggedColumns({name: [values[index] for index in indices] for name, values in self.values.items()})

    def row(self, index: int) -> dict[str, Any]:
        """Return the value of each column in this row."""
        return {name: values[index] for name, values in self.values.items()}
