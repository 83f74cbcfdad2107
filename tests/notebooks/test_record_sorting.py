"""The recorder of notebook 03: what it writes, and that the committed record is of its settings."""

import json
from pathlib import Path

from tests.support.scripts import load_script

RUNS = Path(__file__).parents[2] / "notebooks" / "runs"
record_sorting = load_script("notebooks/runs/record_sorting.py")


def named(record) -> list[tuple[str, str]]:
    return [(run["question"], run["name"]) for run in record["runs"]]


def expected() -> list[tuple[str, str]]:
    return [(question, name) for question, rows in record_sorting.tables().items() for name in rows]


def test_every_run_is_recorded_with_its_settings(tmp_path):
    record_sorting.main(["--fast", "--json", str(tmp_path / "sorting.json")])
    made = json.loads((tmp_path / "sorting.json").read_text(encoding="utf-8"))
    assert named(made) == expected()
    assert made["seeds"] == [0, 1] and made["machine"]["torch"]
    for run in made["runs"]:
        assert run["epochs"][0] == 0 and run["epochs"][-1] == 4
        for metric in record_sorting.METRICS:
            assert len(run[metric]) == 2 and all(len(row) == len(run["epochs"]) for row in run[metric])
    assert made["runs"][0]["settings"]["num_iterations"] == 1


def test_the_committed_record_is_of_these_settings():
    record = json.loads((RUNS / "sorting.json").read_text(encoding="utf-8"))
    assert named(record) == expected()
    rows = [settings for table in record_sorting.tables().values() for settings in table.values()]
    for run, settings in zip(record["runs"], rows, strict=True):
        assert run["settings"] == json.loads(json.dumps(record_sorting.USUAL | settings))
        assert run["epochs"][-1] == run["settings"]["epochs"]
        assert len(run["reward"]) == len(settings.get("seeds", record["seeds"])) == (16 if "seeds" in settings else 8)
