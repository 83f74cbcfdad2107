"""Read the record of notebook 05b: the settings of each loss in three trainers."""

import json
from pathlib import Path
from types import SimpleNamespace

FILE = Path(__file__).parents[2] / "notebooks/runs/family.json"
RECORD = json.loads(FILE.read_text(encoding="utf-8"))
FAMILY = {name: SimpleNamespace(**row) for name, row in RECORD["family"].items()}
VERSIONS = RECORD["versions"]
