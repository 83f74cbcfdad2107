"""Write docs/ran-where.md, a table of the machines that made the records: `python docs/ran_where.py`."""

import json
import re
from collections import defaultdict
from pathlib import Path

from grpo_lab.base.display import markdown_table

PAGE = Path(__file__).with_name("ran-where.md")
RUNS = Path(__file__).parents[1] / "notebooks" / "runs"
HEAD = """# What was run where

The systems, GPUs and versions under which the recorded runs of the lessons were made. `python docs/ran_where.py`
writes this page from the records in `notebooks/runs`. [One GPU](card.md) says what has been tried on a GPU
and what has not, [several GPUs](cluster.md#what-runs-where-and-what-was-run) what was run on several machines. The
workflows in `.github/workflows` are set up for Linux, macOS and Windows; no record comes from macOS or Windows yet.
"""
COLUMNS = ("system", "device", "Python", "torch", "transformers", "TRL", "records")


def page() -> str:
    """Return the page: a row for each machine, and a list of the records that name no machine."""
    records, unnamed = defaultdict(list), []
    for path in sorted(RUNS.glob("*.json")):
        machine = json.loads(path.read_text(encoding="utf-8")).get("machine")
        if machine is None:
            unnamed.append(f"`{path.name}`")
            continue
        system = f"{machine['platform'].partition('-')[0]}, {machine['processor']}"
        versions = [re.sub(r"[+].*", "", machine[name]) for name in ("python", "torch", "transformers", "trl")]
        records[system, machine["device"].replace("cpu", "CPU"), *versions].append(f"`{path.name}`")
    rows = [(*machine_cells, ", ".join(names)) for machine_cells, names in sorted(records.items())]
    kinds = "counts, settings read in other trainers, and first steps on a Linux CPU"
    note = f"These records name no versions: {kinds}: {', '.join(unnamed)}."
    return f"{HEAD}\n{markdown_table(COLUMNS, rows)}\n\n{note}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
