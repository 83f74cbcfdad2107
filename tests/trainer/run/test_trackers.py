"""Trackers by the classes of accelerate: their failures never stop a run."""

import json
import re

import pytest
from accelerate import tracking
from accelerate.utils import LoggerType

from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.settings import TRACKERS
from grpo_lab.trainer.run import trackers
from tests.support.file_faults import Killed
from tests.support.small_policy import train_small


class Service:
    """A fake service that stores the numbers of each step by the identifier of the run."""

    def __init__(self):
        self.runs, self.settings, self.finished = {}, [], 0


def tracker_of(service: Service, name: str, fails: str = ""):
    """Return a tracker class for accelerate; the method `fails` raises ("start", "finish", or "log" at step 2)."""

    class Tracker(tracking.GeneralTracker):
        requires_logging_directory = False

        def __init__(self, run_name, **keywords):
            super().__init__(_blank=True)
            self.project, self.keywords = run_name, keywords

        def start(self):
            if fails == "start" and self.keywords.get("mode") != "offline":
                raise SystemExit("no login")
            self.steps = service.runs.setdefault(self.keywords["id"], {})

        def store_init_configuration(self, values):
            service.settings.append(values)

        def log(self, values, step):
            if fails == "log" and step == 2:
                raise OSError("the network\nis down")
            self.steps[step] = values

        def finish(self):
            service.finished += 1
            if fails == "finish":
                raise RuntimeError("not uploaded")

    Tracker.name = name
    return Tracker


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: [LoggerType.WANDB, LoggerType.SWANLAB])
    return Service()


def use(monkeypatch, service, fails=""):
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "wandb", tracker_of(service, "wandb", fails))


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_tracker_names_are_those_of_accelerate():
    assert set(TRACKERS) == {str(name) for name in LoggerType.list()} - {"all"} == tracking.LOGGER_TYPE_TO_CLASS.keys()


def test_report_to_takes_one_or_several_trackers_and_refuses_others():
    folder = {"output_dir": "out"}
    assert GRPOConfig().trackers == GRPOConfig(report_to=["none"], **folder).trackers == ()
    assert GRPOConfig(report_to="wandb", **folder).trackers == ("wandb",)
    both = GRPOConfig(report_to=["wandb", "tensorboard", "wandb"], **folder)
    assert (
        both.trackers == ("wandb", "tensorboard") and json.loads(json.dumps(both.as_dict()))["report_to"][0] == "wandb"
    )
    with pytest.raises(InputError, match="^report_to is 'neptune'; expected one of 'none', 'aim', "):
        GRPOConfig(report_to=["wandb", "neptune"], **folder)


def test_check_trackers_names_missing_packages_with_their_install_command(service, tmp_path):
    config = GRPOConfig(report_to=["wandb", "mlflow", "comet_ml"], output_dir=str(tmp_path))
    message = "report_to is 'mlflow' and 'comet_ml', which are not installed: python -m pip install mlflow comet_ml"
    with pytest.raises(ImportError, match=f"^{message}$"):
        trackers.check_trackers(config)
    with pytest.raises(ImportError, match="report_to is 'trackio', which is not installed: "):
        train_small(output_dir=str(tmp_path / "out"), report_to="trackio")


def test_trackers_receive_every_metric_and_a_resumed_run_continues_the_same_tracker_run(service, tmp_path, monkeypatch):
    def kill(step, metrics):
        if step == 3:
            raise Killed

    use(monkeypatch, service)
    settings = {"output_dir": str(tmp_path / "out"), "report_to": ["wandb"], "max_steps": 4, "save_steps": 2}
    with pytest.raises(Killed):
        train_small(callback=kill, **settings)
    _, history = train_small(resume_from_checkpoint=True, **settings)
    (steps,) = service.runs.values()
    assert [*steps] == [1, 2, 3, 4] and service.finished == 2
    for metrics in history:
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        assert steps[metrics["step"]] == {name: value for name, value in numbers.items() if name != "step"}
    (tracked_settings,) = service.settings
    assert (
        tracked_settings["report_to"] == "['wandb']"
        and tracked_settings["max_steps"] == 4
        and None not in tracked_settings.values()
    )
    train_small(saved_options={"model": "tiny", "rewards": None}, **settings | {"output_dir": str(tmp_path / "other")})
    assert service.settings[-1] == {"model": "tiny"} | tracked_settings | {"output_dir": str(tmp_path / "other")}
    assert len(service.runs) == 2, "another run has curves of its own"


@pytest.mark.parametrize(
    ("fails", "warning"),
    [
        ("start", "report_to wandb: it could not start (no login); it keeps this run on this machine"),
        ("log", "report_to wandb: it failed (the network is down); it is left out from here on, and metrics.jsonl has"),
        ("finish", "report_to wandb: it failed (not uploaded); it is left out"),
    ],
)
def test_failing_tracker_is_one_line_and_the_run_completes(fails, warning, service, tmp_path, monkeypatch, capsys):
    use(monkeypatch, service, fails)
    train_small(output_dir=str(tmp_path / "out"), report_to="wandb", max_steps=4)
    assert [metrics["step"] for metrics in metrics_of(tmp_path / "out")] == [1, 2, 3, 4]
    lines = [line for line in re.split("[\r\n]", capsys.readouterr().err) if line.startswith("report_to")]
    assert len(lines) == 1 and lines[0].startswith(warning)
    (steps,) = service.runs.values()
    assert [*steps] == ([1] if fails == "log" else [1, 2, 3, 4])


def test_tracker_without_an_offline_mode_is_left_out(service, tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(trackers.OFFLINE, "wandb")
    use(monkeypatch, service, "start")
    train_small(output_dir=str(tmp_path / "out"), report_to="wandb", max_steps=2)
    assert "wandb: it could not start (no login); it is left out from here on" in capsys.readouterr().err
    assert not service.runs and len(metrics_of(tmp_path / "out")) == 2


def test_identifiers_in_trackers_json_are_validated(service, tmp_path, monkeypatch):
    use(monkeypatch, service)
    settings = {"output_dir": str(tmp_path / "out"), "report_to": "wandb", "save_steps": 1}
    train_small(max_steps=1, **settings)
    (tmp_path / "out/trackers.json").write_text(json.dumps({"run": "../x", "key": "y"}), encoding="utf-8")
    train_small(max_steps=2, resume_from_checkpoint=True, **settings)
    names = [*service.runs]
    assert len(names) == 2 and all(re.fullmatch("[0-9a-f]{32}", name) for name in names)


def test_a_run_of_our_loop_reports_whatever_rank_the_process_has(service, tmp_path, monkeypatch):
    """Each process with our loop is a run of its own; TRL's engine has one run, which its first process reports."""
    use(monkeypatch, service)
    monkeypatch.setenv("RANK", "1")
    train_small(output_dir=str(tmp_path / "out"), report_to="wandb")
    assert len(service.runs) == 1
