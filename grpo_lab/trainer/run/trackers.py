"""Trackers of the metrics of a run, such as TensorBoard or wandb, by the classes of accelerate.

A failure of a tracker never stops a run: a tracker that cannot start, or that fails later, is left out with a line on
stderr. metrics.jsonl holds all metrics in any case.
"""

import json
import os
import re
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm

from grpo_lab.base.checks import InputPackageError
from grpo_lab.base.commands import one_line
from grpo_lab.base.files import write_atomically
from grpo_lab.config import GRPOConfig
from grpo_lab.trainer.run.checkpoint import UNFINISHED_FOLDER, as_json
from grpo_lab.trainer.run.folder import output_path

DEFAULT_PROJECT = "grpo_lab"  # project if WANDB_PROJECT, TRACKIO_PROJECT or SWANLAB_PROJECT is not set
IDENTIFIERS_FILE = "trackers.json"  # file in the output folder with the identifiers of the run in its trackers
FAILURES = (Exception, SystemExit)  # SystemExit, since some trackers end the program if there is no login
VALID_IDENTIFIER = re.compile(r"[\w-]{1,64}")
LEFT_OUT = "it is left out from here on, and metrics.jsonl has all of it"
# Keywords with which a tracker writes to this machine, if there is no login or no network.
OFFLINE: dict[str, dict] = {"wandb": {"mode": "offline"}, "swanlab": {"mode": "offline"}, "comet_ml": {"online": False}}
# Functions that read the identifier of a started run, for trackers that choose the identifier themselves.
READ_IDENTIFIER = {"mlflow": lambda run: run.info.run_id, "clearml": lambda task: task.id, "aim": lambda run: run.hash}


def check_trackers(config: GRPOConfig) -> None:
    """Raise InputPackageError that names the trackers of `report_to` that are not installed."""
    if not config.trackers:
        return
    if find_spec("accelerate") is None:
        problem = f"is {config.report_to!r}, for which accelerate is not installed: python -m pip install accelerate"
        raise InputPackageError("report_to", config.report_to, problem=problem)
    from accelerate import tracking

    available = {str(name) for name in tracking.get_available_trackers()}
    if missing := [name for name in config.trackers if name not in available]:
        names, verb = " and ".join(map(repr, missing)), "is" if len(missing) == 1 else "are"
        expected = f"which {verb} not installed: python -m pip install {' '.join(missing)}"
        raise InputPackageError("report_to", config.report_to, problem=f"is {names}, {expected}")


class Trackers:
    """Context manager of the trackers that `report_to` names; a resumed run continues its own curves.

    Args:
        config: The settings of the run.
        completed_steps: Number of steps before the run was resumed. A killed run may have logged later steps:
            TensorBoard deletes them, and the other trackers get the same numbers again.
        saved_options: Options of the command that the trackers store with the settings.
    """

    def __init__(self, config: GRPOConfig, completed_steps: int, saved_options: dict):
        check_trackers(config)
        self._config = config
        self._completed_steps = completed_steps
        self._saved_options = saved_options
        self._running: dict[str, Any] = {}  # the started trackers, by name
        self._file = Path(config.output_dir or "", IDENTIFIERS_FILE)

    def __enter__(self):
        if not self._config.trackers:
            return self
        from accelerate import PartialState

        PartialState()  # the tracker classes read the index of the process from it
        self._is_resumed = self._config.resume_from_checkpoint and self._file.is_file()
        self._identifiers = self._read_identifiers()
        for name in self._config.trackers:
            self._start(name)
        write_atomically(self._file, as_json(self._identifiers, indent=1) + "\n", self._file.parent / UNFINISHED_FOLDER)
        return self

    def __exit__(self, *details):
        for name in [*self._running]:
            self._attempt(name, lambda tracker: tracker.finish())

    def log(self, metrics: dict) -> None:
        """Send the numbers of a step to all trackers."""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != "step"}
        for name in [*self._running]:
            self._attempt(name, lambda tracker: tracker.log(numbers, step=metrics["step"]))

    def _start(self, name: str) -> None:
        """Start a tracker; if that fails, start it offline if it has such a mode, else leave it out."""
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        project = name if name == "tensorboard" else os.environ.get(f"{name.upper()}_PROJECT", DEFAULT_PROJECT)
        first_error = None
        modes: list[dict] = [{}, OFFLINE[name]] if name in OFFLINE else [{}]
        for mode in modes:
            tracker = LOGGER_TYPE_TO_CLASS[name](project, **self._arguments(name) | mode)
            try:
                tracker.start()
            except FAILURES as error:
                first_error = first_error or error
                continue
            self._running[name] = tracker
            break
        if first_error is not None:
            outcome = "it keeps this run on this machine" if name in self._running else LEFT_OUT
            _warn(name, "could not start", first_error, outcome)
        if name in self._running:
            self._attempt(name, lambda tracker: self._register_run(name, tracker))

    def _register_run(self, name: str, tracker) -> None:
        """Store the identifier that the tracker chose for the run; send it the settings if the run is new."""
        if name in READ_IDENTIFIER:
            self._identifiers[name] = READ_IDENTIFIER[name](tracker.tracker)
        if name != "tensorboard" and not self._is_resumed:  # TensorBoard would create a folder for the settings
            tracker.store_init_configuration(plain_settings(self._saved_options | self._config.as_dict()))

    def _attempt(self, name: str, action) -> None:
        """Call `action` with a tracker; if that raises, leave the tracker out from then on."""
        try:
            action(self._running[name])
        except FAILURES as error:
            del self._running[name]
            _warn(name, "failed", error, LEFT_OUT)

    def _read_identifiers(self) -> dict[str, str]:
        """Return the identifiers of the run in its trackers: those of the resumed run, or a new one."""
        saved = json.loads(self._file.read_text(encoding="utf-8")) if self._is_resumed else {}
        valid_names = {"run", *READ_IDENTIFIER}
        identifiers = {"run": uuid.uuid4().hex}
        for name, identifier in saved.items():
            if name in valid_names and VALID_IDENTIFIER.fullmatch(str(identifier)):
                identifiers[name] = identifier
        return identifiers

    def _arguments(self, name: str) -> dict:
        """Return the keywords of accelerate's class: the folder, the title of the run, and the run to continue."""
        folder, identifier = output_path(self._config), self._identifiers["run"]
        title, tracker_identifier = f"{folder.resolve().name}-{identifier[:6]}", self._identifiers.get(name)
        arguments: dict[str, dict] = {
            "aim": {"logging_dir": folder, "run_hash": tracker_identifier},
            "clearml": {"task_name": title, "continue_last_task": tracker_identifier or False},
            "comet_ml": {"experiment_key": identifier},
            "dvclive": {"dir": str(folder / "dvclive"), "resume": True, "save_dvc_exp": False, "dvcyaml": None},
            "mlflow": {"run_name": title, "run_id": tracker_identifier},
            "swanlab": {
                "experiment_name": title, "id": identifier[:21], "resume": "allow", "logdir": str(folder / "swanlab"),
            },
            "tensorboard": {"logging_dir": folder, "purge_step": self._completed_steps + 1},
            "trackio": {"name": title, "resume": "allow"},
            "wandb": {"name": title, "id": identifier, "resume": "allow", "dir": str(folder)},
        }  # fmt: skip
        return arguments[name]


def plain_settings(settings: dict) -> dict:
    """Return the settings of a run as numbers and texts, the types that trackers accept; None is left out."""
    values = {name: value for name, value in settings.items() if value is not None}
    return {name: value if isinstance(value, int | float | str) else str(value) for name, value in values.items()}


def _warn(name: str, event: str, error: BaseException, outcome: str) -> None:
    reason = one_line(str(error))[:200] or type(error).__name__
    tqdm.write(f"report_to {name}: it {event} ({reason}); {outcome}", file=sys.stderr)
