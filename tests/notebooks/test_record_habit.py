"""The recorder of the habit of notebook 07b, with the tiny model in place of the real one."""

import json
from pathlib import Path

from tests.support.scripts import load_script

PATH = Path(__file__).parents[2] / "notebooks" / "runs" / "record_habit.py"
record_habit = load_script("notebooks/runs/record_habit.py")


def test_runs_are_recorded_once_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(record_habit, "SUMS", 2)
    file = tmp_path / "habit.json"
    for seeds in (["1"], ["0", "1"]):
        record_habit.main(["--model", "tiny", "--steps", "1", "--json", str(file), "--seeds", *seeds])
    made = json.loads(file.read_text(encoding="utf-8"))
    assert [run["seed"] for run in made["runs"]] == [0, 1] and made["settings"]["max_steps"] == 1
    for found in (made["before"], *(run["after"] for run in made["runs"])):
        assert len(found) == 2 and all(0 <= p <= 1 for pair in found for p in pair)


def test_the_settings_are_those_of_the_plain_run():
    recorded = json.loads(PATH.with_name("smollm2.json").read_text(encoding="utf-8"))["settings"]
    assert {name: record_habit.SETTINGS.get(name) for name in recorded} == recorded | {"log_kl": None}
