"""Recorded runs: figures come out as they are in the file, and nothing is shown that no file holds."""

import json

from grpo_lab.bench.recorded import show_runs

MACHINE = {"device": "Some Card", "processor": "x86_64", "torch": "2.11.0", "transformers": "5.17.0"}


def run(mode: str, seed: int, accuracy: float) -> dict:
    stations = {"time/rollout": 30.0, "time/reward": 1.0, "time/score": 9.0, "time/update": 10.0, "step_time": 55.0}
    metrics = {name: [0.1, 0.2, 0.4 + seed / 10] for name in ("reward", "rewards/think_rate/mean", "grad_norm")}
    return {
        "mode": mode,
        "seed": seed,
        "peak_memory": 3 * 2**30,
        "seconds_per_station": stations,
        "metrics": metrics,
        "weights_moved": 0.25,
        "evaluation": {"accuracy": accuracy, "accuracy_ci95": [accuracy - 0.1, accuracy + 0.1]},
    }


RECORD = {
    "what": "Qwen2-0.5B's architecture, trained from random weights on synthetic problems",
    "machine": MACHINE,
    "base": {"accuracy": 0.2, "accuracy_ci95": [0.15, 0.25]},
    "runs": [run("bf16", 0, 0.8), run("bf16", 1, 0.7), run("bf16-naive", 0, 0.3)],
}


def test_runs_are_marked_as_recorded_and_become_rows_of_their_own_figures(tmp_path, capsys):
    file = tmp_path / "qwen2_gpu.json"
    show_runs(file)
    shown = capsys.readouterr().out
    assert "No run on a card has been recorded yet" in shown and "make gpu" in shown and "%" not in shown
    file.write_text(json.dumps(RECORD), encoding="utf-8")
    show_runs(file)
    shown = capsys.readouterr().out
    assert "**Recorded**" in shown and "Some Card" in shown and RECORD["what"] in shown
    # 55 s, three steps
    first = "| bf16 | 0 | 0.800 (0.700 to 0.900) | 25.0% | 3.00 GiB | 60% : 2% : 18% : 20% | 18.33 |"
    assert first in shown and shown.count("\n| bf16") == 3
