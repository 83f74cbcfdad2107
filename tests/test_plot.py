"""Curves of runs: the figure shows the values of the logs, and the notes list what is missing."""

import importlib.util
import json
import math

import numpy as np
import pytest

from grpo_lab import plot
from grpo_lab.base.checks import InputError, InputFileError
from tests.support.refusals import refusal_of

pytest.importorskip("matplotlib")


def write_run(folder, steps, **metrics):
    """Write the log of a run in which each metric is the given function of the step."""
    folder.mkdir(parents=True)
    rows = [{"step": step} | {name.replace("__", "/"): f(step) for name, f in metrics.items()} for step in steps]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


def curves(axes) -> list[tuple[list, list]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def test_each_metric_is_drawn_as_the_log_has_it_with_its_unit(tmp_path):
    first = write_run(tmp_path / "a/run", range(1, 6), reward=float, entropy=lambda step: 1 / step)
    other = write_run(
        tmp_path / "b/run", range(2, 6), reward=lambda step: -step, eval__accuracy=lambda s: None if s % 2 else s / 10
    )
    figure, notes = plot.draw_runs([first, other])
    reward, entropy, accuracy = figure.axes
    assert curves(reward) == [([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), ([2, 3, 4, 5], [-2, -3, -4, -5])]
    assert curves(entropy) == [([1, 2, 3, 4, 5], [1 / step for step in range(1, 6)])]
    assert curves(accuracy) == [([2, 4], [0.2, 0.4])], "an evaluation stands at its own step"
    assert [axes.get_ylabel() for axes in figure.axes] == ["mean of a step", "nats per token", "share of completions"]
    assert all(axes.get_xlabel() == "step" for axes in figure.axes)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a/run", "b/run"]
    assert notes[1:] == [
        "left out, since no run has it: completions/mean_length, kl",
        "a/run has no eval/accuracy",
        "b/run has no entropy",
    ]


def test_runs_differ_in_colour_dashes_and_marker(tmp_path):
    runs = [write_run(tmp_path / str(number), range(1, 4), reward=float) for number in range(7)]
    (axes,) = plot.draw_runs(runs)[0].axes
    for look in ("get_color", "get_linestyle", "get_marker", "_dash_pattern"):
        values = [getattr(line, look) for line in axes.lines]
        assert len({str(value() if callable(value) else value) for value in values}) >= (4 if "line" in look else 7)
    with pytest.raises(InputError, match="^runs are 8; expected 1 to 7 runs, as many as can be told apart"):
        plot.draw_runs([*runs, runs[0]])


def test_runs_with_the_same_path_are_numbered():
    log = [{"step": 1, "reward": 1.0}]
    figure, _ = plot.draw_runs([log, log])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["run (1)", "run (2)"]
    assert plot.run_names(["a/out", "b/out", "a/out"]) == ["a/out (1)", "b/out", "a/out (2)"]
    assert plot.run_names(["a/out", "b/in"]) == ["out", "in"]


@pytest.mark.parametrize("window", [1, 2, 3, 8, 99])
def test_smoothed_metric_is_the_mean_of_the_neighbours_on_either_side(window):
    values = np.random.default_rng(0).normal(size=12)
    means = plot.centred_mean(values, window)
    reach = (window - 1) // 2
    for index, mean in enumerate(means):
        assert mean == pytest.approx(values[max(0, index - reach) : index + reach + 1].mean())


def test_draw_runs_notes_smoothing_and_keeps_the_steps_visible(tmp_path):
    run = write_run(tmp_path / "run", range(1, 101), reward=lambda step: math.sin(step), eval__accuracy=lambda s: None)
    figure, notes = plot.draw_runs([run], smooth=6)
    thin, thick = figure.axes[0].lines
    assert list(thin.get_ydata()) == [math.sin(step) for step in range(1, 101)] and thin.get_alpha() < 0.5
    assert list(thick.get_ydata()) == pytest.approx(list(plot.centred_mean(np.array(thin.get_ydata()), 5)))
    caption = "thin and pale: each step; thick: the centred mean of 5 steps, of fewer at the ends"
    assert notes[1] == caption and figure.get_suptitle() == f"run\n{caption}"
    figure, notes = plot.draw_runs([run], smooth=1)
    assert len(figure.axes[0].lines) == 1 and figure.get_suptitle() == "run" and "thick" not in " ".join(notes)


def test_draw_runs_of_other_metrics_and_of_trls_log(tmp_path):
    state = {"log_history": [{"step": step, "loss": step / 2, "eval_reward": 1.0} for step in (1, 2)]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    loss, reward = plot.draw_runs([tmp_path], ["loss", "eval/reward"])[0].axes
    assert curves(loss) == [([1, 2], [0.5, 1.0])] and reward.get_title() == "eval/reward"


def test_plot_command_writes_a_picture_and_describes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", range(1, 4), reward=float)
    for name in ("curves.png", "a.svg", "a.pdf"):
        assert plot.main(["run", *([] if name == "curves.png" else ["--output", name])]) == 0
        begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[name.split(".")[1]]
        assert (tmp_path / name).read_bytes().startswith(begins)
        assert capsys.readouterr().out.splitlines() == [
            "reward by step of run",
            "left out, since no run has it: completions/mean_length, kl, entropy, eval/accuracy",
            f"written: {name}",
        ]


def test_plot_command_refuses_sources_and_metrics_it_cannot_draw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "run", range(1, 4), reward=float)
    for words, message in [
        (["empty"], "source is 'empty', which holds no log; expected metrics.jsonl or trainer_state.json"),
        (["none"], "source 'none' does not exist; expected a folder of a run"),
        (["run", "--metrics", "los"], "--metrics is ['los']; none of los is in the log"),
        (["run", "--smooth", "0"], "--smooth is 0; it must be at least 1"),
        (["run", "--output", "a.bmp"], "--output is 'a.bmp'; expected a name that ends in one of .png, .svg, .pdf"),
        (["run", "--output", "none/a.png"], "is not the name of a file"),
    ]:
        assert message in refusal_of(plot.main, *words)
    assert not (tmp_path / "curves.png").exists()
    with pytest.raises(InputFileError):
        plot.plot_runs(["empty"])
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(plot, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    assert "matplotlib, which is not installed: python -m pip install matplotlib" in refusal_of(plot.main, "run")


def test_plot_runs_in_a_notebook_shows_caption_and_alt_text(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(plot, "in_ipython", lambda: True)
    monkeypatch.setattr(plot, "finish", lambda figure, caption, alt: shown.append((caption, alt)))
    assert plot.plot_runs([write_run(tmp_path / "run", range(1, 4), reward=float)]) is None
    ((caption, alt),) = shown
    assert alt == "reward by step of run" and caption.startswith("reward by step of run. left out, since no run")
