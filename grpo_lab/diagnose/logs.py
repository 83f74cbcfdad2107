"""Read the log of a run, ours or another trainer's, into one form: a dict for each step, under the course's names."""

import csv
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float

METRICS, SETTINGS, STATE = "metrics.jsonl", "grpo_config.json", "trainer_state.json"  # as the trainers call them
EVENTS = "events.out.tfevents.*"
STEPS = ("step", "train/global_step", "global_step", "Step", "_step")  # the first of these that a row has
# Names of older versions of TRL -> those of today.
OLDER = {"completion_length": "completions/mean_length", "clip_ratio": "clip_ratio/region_mean"}
KINDS = (
    f"a folder of a run ({METRICS}, {STATE} or TensorBoard's events), one of these files, a CSV of W&B, or a list of "
    "dicts with a step each"
)


@dataclass(frozen=True)
class Log:
    """What a run wrote down.

    rows: one dict a step, in the order of the steps: "step", and floats by the names of docs/metrics.md; NaN where the
        log says that there is no number, or none that is finite.
    settings: what the run was configured with, as far as the log says it.
    """

    rows: list[dict]
    settings: dict = field(default_factory=dict)
    name: str = "run"

    def column(self, metric: str) -> Float[np.ndarray, " N"]:
        """One number a row; NaN where there is none."""
        return np.array([row.get(metric, math.nan) for row in self.rows], dtype=float)

    def points(self, metric: str) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
        """(steps, values) of the K rows that have a finite value."""
        values = self.column(metric)
        kept = np.isfinite(values)
        return self.column("step")[kept], values[kept]

    def has(self, *metrics: str) -> bool:
        return all(any(metric in row for row in self.rows) for metric in metrics)

    @property
    def metrics(self) -> list[str]:
        """The names of all numbers in it, in the order in which they appear."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name != "step"))


def read_log(source, settings: dict | None = None) -> Log:
    """The log in a folder, in a file, or in a list of dicts such as TRL's `trainer.state.log_history`.

    Args:
        source: a folder of this package's or of TRL's (its newest checkpoint), a folder of TensorBoard's events, a file
            metrics.jsonl or trainer_state.json, a CSV exported from W&B, a list of dicts; or a `Log`.
        settings: what is known of the configuration beside it (`precision`, `num_iterations`, ...); it wins.

    Raises:
        FileNotFoundError: if there is no such path, or no log in the folder.
        ValueError: for a file that is no log, or a log without steps or without numbers.
        TypeError: for another kind of source.
        ImportError: for TensorBoard's events where tensorboard is not installed.
    """
    if isinstance(source, Log):
        return Log(source.rows, source.settings | (settings or {}), source.name)
    if isinstance(source, str | Path):
        rows, found, name = *_from_path(Path(source)), str(source)
    elif isinstance(source, list) and all(isinstance(row, dict) for row in source):
        rows, found, name = source, {}, "run"
    else:
        raise TypeError(f"source is of type {type(source).__name__}; expected {KINDS}")
    return Log(_by_step(rows, name), found | (settings or {}), name)


def _from_path(path: Path) -> tuple[list[dict], dict]:
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"source {str(path)!r} does not exist; expected {KINDS}")
    if path.suffix == ".jsonl":
        return _parsed(path, lambda text: [json.loads(line) for line in text.splitlines()]), {}
    if path.suffix == ".json":
        state = _parsed(path, json.loads)
        if not isinstance(state, dict) or "log_history" not in state:
            raise ValueError(f"source {str(path)!r} has no 'log_history'; expected a {STATE} as a trainer writes it")
        return state["log_history"], {}
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [_of_chart(row) for row in csv.DictReader(file)], {}
    if "tfevents" in path.name:
        return _from_events(path)
    raise ValueError(f"source is {str(path)!r}; expected {KINDS}")


def _from_folder(folder: Path) -> tuple[list[dict], dict]:
    if (folder / METRICS).is_file():
        settings = _parsed(folder / SETTINGS, json.loads) if (folder / SETTINGS).is_file() else {}
        return _from_path(folder / METRICS)[0], settings
    states = [folder / STATE] if (folder / STATE).is_file() else list(folder.glob(f"checkpoint-*/{STATE}"))
    if states:
        return _from_path(max(states, key=lambda path: path.stat().st_mtime))
    holding = sorted({path.parent for path in folder.rglob(EVENTS)})
    if len(holding) > 1:
        raise ValueError(
            f"source {str(folder)!r} holds events of several runs; expected one of "
            + ", ".join(path.relative_to(folder).as_posix() for path in holding)
        )
    if holding:
        return _from_events(holding[0])
    raise FileNotFoundError(f"source {str(folder)!r} holds no log; expected {METRICS}, {STATE} or TensorBoard's events")


def _parsed(path: Path, parse):
    try:
        return parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"source {str(path)!r} cannot be read as JSON: {error}") from error


def _from_events(path: Path) -> tuple[list[dict], dict]:
    """Scalars, and the settings that transformers' trainers put beside them as a text."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        said = f"source {str(path)!r} needs tensorboard, which is not installed: python -m pip install tensorboard"
        raise ImportError(said) from error
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    scalars, texts = events.Tags()["scalars"], events.Tags()["tensors"]
    rows = [{"step": point.step, tag: point.value} for tag in scalars for point in events.Scalars(tag)]
    settings = {}
    for tag in ("model_config/text_summary", "args/text_summary"):
        if tag in texts:
            settings |= json.loads(events.Tensors(tag)[-1].tensor_proto.string_val[0])
    return rows, settings


def _of_chart(row: dict) -> dict:
    """W&B writes the columns of a chart as "name of the run - metric", with "__MIN" and "__MAX" beside them."""
    return {
        name.split(" - ")[-1]: text for name, text in row.items() if name and not re.search("__(MIN|MAX|STEP)$", name)
    }


def _by_step(rows: Iterable[dict], name: str) -> list[dict]:
    """Rows of the same step as one, under our names, in the order of the steps."""
    steps: dict[int, dict] = {}
    for row in rows:
        key = next((key for key in STEPS if row.get(key) not in (None, "")), None)
        if key is None:
            raise ValueError(f"source {name!r} has a row without a step: {str(row)[:80]}; expected one of {STEPS}")
        values = {_our_name(name): _number(value) for name, value in row.items() if name not in STEPS}
        known = {name: value for name, value in values.items() if value is not None}
        steps.setdefault(int(float(row[key])), {}).update(known)
    found = [{"step": step} | steps[step] for step in sorted(steps)]
    if not any(math.isfinite(value) for row in found for name, value in row.items() if name != "step"):
        raise ValueError(f"source {name!r} holds no numbers; expected the metrics of at least one step")
    return found


def _our_name(name: str) -> str:
    name = name.removeprefix("train/")
    return f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else OLDER.get(name, name)


def _number(value) -> float | None:
    """NaN for a null, with which JSON writes NaN and infinity; None for what is no number, such as a warning."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return None
