"""The recorder of notebook 04: what it writes, and that a run depends on its seed alone."""

import json
from pathlib import Path

from tests.support.scripts import load_script

PATH = Path(__file__).parents[2] / "notebooks" / "runs" / "record_kl.py"
record_kl = load_script("notebooks/runs/record_kl.py")


def test_arms_are_recorded_from_both_starts_and_again_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(record_kl, "MOVED_STEPS", 1)
    monkeypatch.setattr(record_kl, "PROMPTS", 2)
    monkeypatch.setattr(record_kl, "G", 4)
    monkeypatch.setattr(record_kl, "addition_problems", lambda split, n, seed: PROBLEMS(split, min(n, 8), seed=seed))
    made = []
    for name in ("one.json", "two.json"):
        file = tmp_path / name
        record_kl.main(["--arms", "0", "0.5, moved", "--seeds", "3", "--steps", "2", "--json", str(file)])
        made.append(json.loads(file.read_text(encoding="utf-8")))
    assert made[0]["runs"] == made[1]["runs"]
    base, moved = made[0]["runs"]
    assert (base["arm"], moved["arm"], moved["beta"]) == ("0", "0.5, moved", 0.5)
    assert len(base["thinking"]) == 3 and len(base["kl"]) == 2
    assert base["kl"][0] == 0 and base["thinking"][0] != moved["thinking"][0]
    assert 0 <= base["after"]["right_thinking"] <= base["after"]["right"] <= base["after"]["n"]
    file = tmp_path / "one.json"
    record_kl.main(["--arms", "0.5, in the reward", "0", "--seeds", "3", "--steps", "4", "--json", str(file)])
    again = json.loads(file.read_text(encoding="utf-8"))["runs"]
    assert [run["arm"] for run in again] == ["0", "0.5, moved", "0.5, in the reward"]
    assert again[0]["thinking"][:3] == base["thinking"] and again[1] == moved
    assert again[2]["thinking"] != again[0]["thinking"]  # once the policy has moved, the KL is charged


def test_the_record_holds_what_the_notebook_reads():
    record = json.loads(PATH.with_name("tiny_kl.json").read_text(encoding="utf-8"))
    seeds = {name: [run["seed"] for run in record["runs"] if run["arm"] == name] for name in record_kl.ARMS}
    assert seeds.pop("2, small steps") == [0] and all(of == [0, 1, 2] for of in seeds.values())
    for run in record["runs"]:
        assert run.items() >= vars(record_kl.ARMS[run["arm"]]).items() and len(run["thinking"]) == run["steps"] + 1


PROBLEMS = record_kl.addition_problems
