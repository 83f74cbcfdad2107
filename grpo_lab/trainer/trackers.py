"""Trackers of a run's curves, such as TensorBoard or wandb: those of accelerate, by its own classes.

What a tracker does never decides over a run: one that cannot start, or that fails, is left out with a line on stderr,
and metrics.jsonl has all that it would have shown.
"""

import json
import os
import re
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from grpo_lab.base.checks import InputPackageError
from grpo_lab.base.parser import one_line
from grpo_lab.config import GRPOConfig
from grpo_lab.trainer.folder.checkpoint import as_json, write_whole

PROJECT = "grpo_lab"  # unless WANDB_PROJECT, TRACKIO_PROJECT or SWANLAB_PROJECT says another one
IDENTIFIERS = "trackers.json"  # in the folder of a run: the names under which its trackers know it
FAILURES = (Exception, SystemExit)  # some of their libraries end the program where there is no login
NAME = re.compile(r"[\w-]{1,64}")
LEFT_OUT = "it is left out from here on, and metrics.jsonl has all of it"
# The keywords with which a tracker that has no login, or no network, keeps what it is told on this machine.
OFFLINE = {"wandb": {"mode": "offline"}, "swanlab": {"mode": "offline"}, "comet_ml": {"online": False}}
# The names that a service gives to a run itself: how to read them once it has started.
GIVEN_NAMES = {"mlflow": lambda run: run.info.run_id, "clearml": lambda task: task.id, "aim": lambda run: run.hash}


def check_trackers(config: GRPOConfig) -> None:
    """Raise InputPackageError for the trackers of `report_to` that are not installed, by name."""
    if not config.trackers:
        return
    if find_spec("accelerate") is None:
        problem = f"is {config.report_to!r}, for which accelerate is not installed: python -m pip install accelerate"
        raise InputPackageError("report_to", config.report_to, found=problem)
    from accelerate import tracking

    available = {str(name) for name in tracking.get_available_trackers()}
    if missing := [name for name in config.trackers if name not in available]:
        names, verb = " and ".join(map(repr, missing)), "is" if len(missing) == 1 else "are"
        expected = f"which {verb} not installed: python -m pip install {' '.join(missing)}"
        raise InputPackageError("report_to", config.report_to, found=f"is {names}, {expected}")


class Trackers:
    """A context of the trackers that `report_to` names. A run that goes on continues its own curves.

    first_step: the steps that are done. What a killed run showed of later ones is struck out on TensorBoard; the others
    get the same numbers once more.
    """

    def __init__(self, config: GRPOConfig, first_step: int):
        check_trackers(config)
        self._config = config
        self._first_step = first_step
        self._running = {}
        self._is_main = int(os.environ.get("RANK", 0)) == 0  # of several processes one reports
        self._file = Path(config.output_dir or "", IDENTIFIERS)

    def __enter__(self):
        if not (self._config.trackers and self._is_main):
            return self
        from accelerate import PartialState

        PartialState()  # its classes ask it which process this is
        self._identifiers = self._read_identifiers()
        for name in self._config.trackers:
            self._start(name)
        write_whole(self._file, as_json(self._identifiers, indent=1) + "\n")
        return self

    def __exit__(self, *details):
        for name in [*self._running]:
            self._attempt(name, lambda tracker: tracker.finish())

    def log(self, metrics: dict) -> None:
        """Show the numbers of a step."""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != "step"}
        for name in [*self._running]:
            self._attempt(name, lambda tracker: tracker.log(numbers, step=metrics["step"]))

    def _start(self, name: str) -> None:
        """Start a tracker; one that cannot start is started offline where it has such a mode, else left out."""
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        project = name if name == "tensorboard" else os.environ.get(f"{name.upper()}_PROJECT", PROJECT)
        first_error = None
        for offline in [{}, *([OFFLINE[name]] if name in OFFLINE else [])]:
            tracker = LOGGER_TYPE_TO_CLASS[name](project, **self._arguments(name) | offline)
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
            self._attempt(name, lambda tracker: self._introduce(name, tracker))

    def _introduce(self, name: str, tracker) -> None:
        """Note the name that a service gave to the run; tell it the settings, if the run begins."""
        if name in GIVEN_NAMES:
            self._identifiers[name] = GIVEN_NAMES[name](tracker.tracker)
        if name != "tensorboard" and not self._goes_on:  # which would make a folder of its own of them
            tracker.store_init_configuration(plain_settings(self._config))

    def _attempt(self, name: str, action) -> None:
        """Do something with a tracker; if that fails, it is left out from there on."""
        try:
            action(self._running[name])
        except FAILURES as error:
            del self._running[name]
            _warn(name, "failed", error, LEFT_OUT)

    def _read_identifiers(self) -> dict[str, str]:
        """The names under which the trackers know this run: those of the run that goes on, or a new one."""
        self._goes_on = self._config.resume_from_checkpoint and self._file.is_file()
        saved = json.loads(self._file.read_text(encoding="utf-8")) if self._goes_on else {}
        names = {"run", *GIVEN_NAMES} & saved.keys()
        return {"run": uuid.uuid4().hex} | {name: saved[name] for name in names if NAME.fullmatch(str(saved[name]))}

    def _arguments(self, name: str) -> dict:
        """The keywords of accelerate's class: where it writes, what it calls the run, and which of its runs goes on."""
        folder, identifier = Path(self._config.output_dir), self._identifiers["run"]
        title, given_name = f"{folder.resolve().name}-{identifier[:6]}", self._identifiers.get(name)
        return {
            "aim": {"logging_dir": folder, "run_hash": given_name},
            "clearml": {"task_name": title, "continue_last_task": given_name or False},
            "comet_ml": {"experiment_key": identifier},
            "dvclive": {"dir": str(folder / "dvclive"), "resume": True, "save_dvc_exp": False, "dvcyaml": None},
            "mlflow": {"run_name": title, "run_id": given_name},
            "swanlab": {
                "experiment_name": title, "id": identifier[:21], "resume": "allow", "logdir": str(folder / "swanlab"),
            },
            "tensorboard": {"logging_dir": folder, "purge_step": self._first_step + 1},
            "trackio": {"name": title, "resume": "allow"},
            "wandb": {"name": title, "id": identifier, "resume": "allow", "dir": str(folder)},
        }[name]  # fmt: skip


def plain_settings(config: GRPOConfig) -> dict:
    """The settings of a run as trackers take them: numbers and texts."""
    values = {name: value for name, value in config.saved().items() if value is not None}
    return {name: value if isinstance(value, int | float | str) else str(value) for name, value in values.items()}


def _warn(name: str, event: str, error: BaseException, outcome: str) -> None:
    reason = one_line(str(error))[:200] or type(error).__name__
    tqdm.write(f"report_to {name}: it {event} ({reason}); {outcome}", file=sys.stderr)
