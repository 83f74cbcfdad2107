"""What a run shows while it goes: the bar, TensorBoard, and Weights & Biases, which is played by a module of ours."""

import sys
from types import ModuleType

import pytest

from grpo_lab.config import GRPOConfig
from grpo_lab.trainer import train
from tests.support.axe import Killed
from tests.support.worlds import ROWS, letter_reward, make_config, make_world, run, same_weights


class WandB(ModuleType):
    """Remembers what it is asked. As there, a run that was cut off is taken up again with resume="auto"."""

    def __init__(self):
        super().__init__("wandb")
        self.runs, self.cut_off = [], {}

    def init(self, **settings):
        number = self.cut_off.pop(settings["dir"], None) if settings["resume"] == "auto" else None
        self.runs.append(Run(self, number or f"run {len(self.runs) + 1}", settings))
        return self.runs[-1]


class Run:
    def __init__(self, wandb, number, settings):
        self.wandb, self.number, self.settings = wandb, number, settings
        self.logged, self.axes, self.exit_code = [], {}, None

    def define_metric(self, name, step_metric):
        self.axes[name] = step_metric

    def log(self, metrics):
        assert self.exit_code is None
        self.logged.append(metrics)

    def finish(self, exit_code):
        self.exit_code = exit_code
        if exit_code:
            self.wandb.cut_off[self.settings["dir"]] = self.number


@pytest.fixture
def wandb(monkeypatch):
    module = WandB()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return module


def test_every_step_is_logged_with_its_number_and_the_settings(wandb, tmp_path):
    plain, _ = run(max_steps=3)
    after, history = run(output_dir=str(tmp_path / "first"), report_to="wandb", max_steps=3)
    (logged,) = wandb.runs
    assert same_weights(plain, after) and logged.logged == history and logged.exit_code == 0
    assert logged.axes == {"*": "step"}
    about = {name: logged.settings[name] for name in ("project", "name", "dir", "resume")}
    folder = str(tmp_path / "first")
    assert about == {"project": "grpo_lab", "name": "first", "dir": folder, "resume": "auto"}
    assert GRPOConfig(**logged.settings["config"]) == make_config(output_dir=folder, report_to="wandb", max_steps=3)


def test_the_project_and_the_name_can_be_chosen(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "sums")
    run(output_dir=str(tmp_path / "out"), report_to="wandb", run_name="a try")
    assert (wandb.runs[0].settings["project"], wandb.runs[0].settings["name"]) == ("sums", "a try")


def test_what_is_none_is_not_logged_and_what_is_evaluated_is(wandb, tmp_path):
    def nothing(completions, **kwargs):
        return [None] * len(completions)

    model, tokenizer = make_world()
    config = make_config(output_dir=str(tmp_path / "out"), report_to="wandb", eval_steps=2)
    with pytest.warns(RuntimeWarning, match="their reward is NaN"):
        train(model, tokenizer, ROWS, nothing, config, eval_dataset=ROWS)
    first, second = wandb.runs[0].logged
    assert "reward" not in first and "eval/reward" not in second
    assert "eval/accuracy" in second and "eval/accuracy" not in first


def test_a_run_that_was_cut_off_is_the_same_run_when_it_goes_on(wandb, tmp_path, capsys):
    def kill(step, metrics):
        if step == 3:
            raise Killed

    settings = {"output_dir": str(tmp_path / "out"), "report_to": "wandb", "max_steps": 4, "save_steps": 2}
    with pytest.raises(Killed):
        run(callback=kill, **settings)
    run(resume_from_checkpoint=True, **settings)
    first, second = wandb.runs
    assert (first.exit_code, second.exit_code, second.number) == (1, 0, "run 1")
    assert [metrics["step"] for metrics in first.logged] == [1, 2, 3]
    assert [metrics["step"] for metrics in second.logged] == [3, 4], "step 3 is made, and shown, again"
    assert second.settings["allow_val_change"], "resume_from_checkpoint, for one, is another now"


@pytest.mark.parametrize(("report_to", "module"), [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")])
def test_what_is_not_installed_is_named_with_its_remedy(report_to, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ImportError, match=f"report_to is '{report_to}', which is not installed: python -m pip install {report_to}"
    ):
        run(output_dir=str(tmp_path / "out"), report_to=report_to)


def test_the_progress_bar_keeps_what_was_last_evaluated(capsys):
    model, tokenizer = make_world()
    config = make_config(max_steps=4, eval_steps=2, disable_tqdm=False)
    history = train(model, tokenizer, ROWS, letter_reward, config, eval_dataset=ROWS)
    frames = capsys.readouterr().err.split("\r")
    for step, evaluated in ((1, None), (2, 2), (3, 2), (4, 4)):
        (*_, frame) = (frame for frame in frames if f"{step}/4" in frame)  # the last one of the step
        assert f"reward={history[step - 1]['reward']:.3f}" in frame
        held_out = evaluated and f"held-out accuracy={history[evaluated - 1]['eval/accuracy']:.3f}"
        assert held_out in frame if held_out else "held-out" not in frame


def test_tensorboard_shows_evaluations_at_their_steps(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model, tokenizer = make_world()
    config = make_config(output_dir=str(tmp_path), report_to="tensorboard", max_steps=5, eval_steps=2, log_kl=True)
    history = train(model, tokenizer, ROWS, letter_reward, config, eval_dataset=ROWS)
    board = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name, steps in (("eval/accuracy", [2, 4, 5]), ("kl", [1, 2, 3, 4, 5])):
        events = board.Scalars(name)
        assert [event.step for event in events] == steps
        assert [event.value for event in events] == pytest.approx([history[step - 1][name] for step in steps])
