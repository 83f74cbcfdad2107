"""docs/bench.md shows the recorded figures."""

import json
import re
from pathlib import Path

from tests.support.scripts import load_script

ROOT = Path(__file__).parents[1]
PHASE_METRICS = ("time/rollout", "time/logprobs", "time/update", "step_time")
WAYS = {"checkpointing": "fp32-master`, checkpointing", "reference": "fp32-master`, with a reference in main memory"}


def test_bench_page_table_of_modes_is_that_of_the_record():
    page = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    section = page.split("## A step of the 0.5B model on a CPU")[1].split("\n## ")[0]
    rows = {
        cells[0].strip("` "): cells[1:]
        for cells in re.findall(r"^\| (`.+?) \| " + r"(.+?) \| " * 5 + r"(.+?) \|$", section, re.MULTILINE)
    }
    runs = json.loads((ROOT / "notebooks" / "runs" / "qwen_modes.json").read_text(encoding="utf-8"))["runs"]
    assert len(rows) == len(runs)
    for way, run in runs.items():
        expected = [f"{run['seconds'][phase]:.0f}" for phase in PHASE_METRICS]
        assert list(rows[WAYS.get(way, way)]) == [*expected, f"{run['peak'] / 2**30:.1f}", f"{run['m']:.2f}"], way


def test_bench_page_tables_are_those_of_the_records():
    tables = load_script("docs/bench_tables.py")
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.page(page) == page and {"tiny", "SmolLM2"} <= tables.read_reports().keys()
