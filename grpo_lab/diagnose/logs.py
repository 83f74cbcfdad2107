"""Read the log of a run, ours or another trainer's, into one form: a dict for each step, under the course's names."""

import contextlib
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float

from grpo_lab.base.checks import InputError, InputFileError, InputTypeError
from grpo_lab.base.names import METRICS, SETTINGS_FILE

STATE = "trainer_state.json"  # as transformers calls it
KINDS = f"a folder of a run ({METRICS} or {STATE}), one of these files, or a list of dicts with a step each"


class MissingMetric(LookupError):
    """The log has too few numbers of the metric that is named."""


@dataclass(frozen=True)
class Log:
    """The log of a run.

    rows: one dict per step, in the order of the steps: "step", and floats by the names of docs/metrics.md; NaN where
        the log says that there is no number, or none that is finite.
    settings: what the run was configured with, as far as the log says it.
    """

    rows: list[dict]
    settings: dict = field(default_factory=dict)
    name: str = "run"

    def column(self, metric: str) -> Float[np.ndarray, " N"]:
        """One number per row; NaN where there is none."""
        return np.array([row.get(metric, math.nan) for row in self.rows], dtype=float)

    def points(self, metric: str, least: int = 0) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
        """(steps, values) of the K rows that have a finite value; `MissingMetric` if those are fewer than the least."""
        values = self.column(metric)
        finite = np.isfinite(values)
        if finite.sum() < least:
            raise MissingMetric(metric)
        return self.column("step")[finite], values[finite]

    def has(self, metric: str) -> bool:
        return any(metric in row for row in self.rows)


def read_log(source, settings: dict | None = None) -> Log:
    """The log in a folder, in a file, or in a list of dicts such as TRL's `trainer.state.log_history`.

    Args:
        source: a folder of this package's or of TRL's (its newest checkpoint), a file metrics.jsonl or
            trainer_state.json, or a list of dicts.
        settings: what is known of the configuration beside it (`precision`, `num_iterations`, ...); it wins.

    Raises:
        FileNotFoundError: if there is no such path, or no log in the folder.
        ValueError: for a file that is no log, or a log without steps or without numbers.
        TypeError: for another kind of source.
    """
    if isinstance(source, str | Path):
        rows, saved_settings = _from_path(Path(source))
        name = str(source)
    elif isinstance(source, list) and all(isinstance(row, dict) for row in source):
        rows = source
        saved_settings = {}
        name = "run"
    else:
        raise InputTypeError("source", source, f"expected {KINDS}", found=f"is of type {type(source).__name__}")
    return Log(_by_step(rows, name), saved_settings | (settings or {}), name)


def _from_path(path: Path) -> tuple[list, dict]:
    """Return the rows and the settings in a folder or file."""
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise InputFileError("source", path, f"expected {KINDS}", found=f"{str(path)!r} does not exist")
    if path.suffix not in (".json", ".jsonl"):
        raise InputError("source", str(path), f"expected {KINDS}")
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in whole_lines(path.read_bytes())], {}
        return json.loads(path.read_bytes())["log_history"], {}
    except ValueError as error:
        raise InputError("source", path, found=f"is {str(path)!r}, which cannot be read as JSON: {error}") from error
    except (KeyError, TypeError) as error:
        raise InputError("source", path, f"expected a {STATE}", found=f"{str(path)!r} has no 'log_history'") from error


def whole_lines(data: bytes) -> list[bytes]:
    """The lines of a file, without a last one that was cut. (In JSON a line may hold U+2028.)"""
    *lines, last_line = data.split(b"\n")
    with contextlib.suppress(ValueError):
        lines += [last_line] if last_line and json.loads(last_line) else []
    return [line for line in lines if line.strip()]


def _from_folder(folder: Path) -> tuple[list, dict]:
    if (folder / METRICS).is_file():
        settings = folder / SETTINGS_FILE
        return _from_path(folder / METRICS)[0], json.loads(settings.read_bytes()) if settings.is_file() else {}
    if states := [*folder.glob(STATE), *folder.glob(f"checkpoint-*/{STATE}")]:
        return _from_path(max(states, key=lambda path: path.stat().st_mtime))
    expected = f"expected {METRICS} or {STATE}"
    raise InputFileError("source", folder, expected, found=f"is {str(folder)!r}, which holds no log")


def _by_step(rows: list, name: str) -> list[dict]:
    """Rows of the same step as one, under our names, in the order of the steps."""
    steps: dict[int, dict] = {}
    for row in rows:
        if not isinstance(row, dict) or row.get("step") is None:
            raise InputError("source", row, "expected 'step'", found=f"{name!r} has a row without: {str(row)[:80]}")
        # TRL's names of held-out metrics become ours.
        values = {
            re.sub("^eval_", "eval/", metric): _number(value) for metric, value in row.items() if metric != "step"
        }
        steps.setdefault(row["step"], {}).update({metric: x for metric, x in values.items() if x is not None})
    if not any(math.isfinite(value) for values in steps.values() for value in values.values()):
        raise InputError(
            "source", name, "expected the metrics of at least one step", found=f"{name!r} holds no numbers"
        )
    return [{"step": step} | steps[step] for step in sorted(steps)]


def _number(value) -> float | None:
    """Read a number: NaN for a null, which stands for NaN and infinity; None for what is none, such as a warning."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return None
