"""Record real short runs with every fault that `grpo_lab.diagnose` names, and healthy runs, in faults.json.

    python notebooks/runs/record_faults.py             the runs that the file lacks: half an hour on one core for all
    python notebooks/runs/record_faults.py --table     print the faults that diagnose finds and misses, and false alarms
    python notebooks/runs/record_faults.py --fast      three runs of two steps; into outputs/

The model is the tiny one. The runs and their faults are defined in faults_planted.py, where `PARTS` lists the parts of
the record. Read that file first.

The metrics that a rule may read are recorded to four digits. A metric is recorded as a list with one value per step, as
a single value if all steps have the same, or as {step: value} if only some steps have it.
"""

import contextlib
import io
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from grpo_lab.base import Parser, command
from grpo_lab.base.files import write_atomically
from grpo_lab.bench.record import describe_machine
from grpo_lab.config import GRPOConfig
from grpo_lab.trainer import train

# The page of further topics reads this file by `runpy`, which does not search the file's folder for imports.
sys.path.append(str(Path(__file__).parent))
from fault_setups import BOTH, COMMON, OURS, TRL, load_tiny, problems
from faults_planted import PARTS, Plant
from recording import HERE, prepare_recording, read_json, recorder_parser, rounded

FILE = HERE / "faults.json"
SEEDS = {"seen": (0, 1, 2), "kept": (11, 12, 13)}
UNRECORDED = re.compile(
    "time/|step_time|num_tokens|tokens_per_second|completions/(min|max)_|clip_ratio/.*_(min|max)$|step$|warning"
)


# ---- the runs


def run(plant: Plant, engine: str, seed: int, steps: int | None = None) -> tuple[list[dict], GRPOConfig]:
    """Make one run; return its history (up to the error that ended it, if any) and its configuration."""
    torch.set_num_threads(1)
    random.seed(seed)
    torch.manual_seed(seed)
    model, tokenizer = load_tiny(plant.precision)
    settings = COMMON | {"seed": seed} | plant.settings | ({} if steps is None else {"max_steps": steps})
    if engine == TRL:
        settings.pop("max_nonfinite_steps", None)  # a setting of our own loop only
    config = GRPOConfig(precision=plant.precision, **settings)
    held_out = {"eval_dataset": problems(plant.task, "test", seed)} if config.eval_steps else {}
    history: list[dict] = []
    arguments = (model, tokenizer, problems(plant.task, "train", seed), list(plant.rewards), config)
    with plant.patch(engine, model), contextlib.redirect_stdout(io.StringIO()):
        try:
            load_trainer(engine)(*arguments, callback=lambda _, metrics: history.append(metrics), **held_out)
        except RuntimeError as error:  # NaN has ended the run
            print(engine, plant.description, f"ended at step {len(history)}: {error}", file=sys.stderr)
    return history, config


def load_trainer(engine: str) -> Callable:
    if engine == OURS:
        return train
    from grpo_lab.train.trl.run import train as by_trl

    return by_trl


def make_entry(part: str, name: str, engine: str, seed: int, steps: int | None = None) -> dict:
    """Make one run and return its entry of the file."""
    plant = PARTS[part][name]
    history, config = run(plant, engine, seed, steps)
    defaults, settings = GRPOConfig().as_dict(), config.as_dict()
    changed = {key: value for key, value in settings.items() if value != defaults[key] and key != "disable_tqdm"}
    return {
        "part": part,
        "name": name,
        "engine": engine,
        "seed": seed,
        "finding": plant.finding,
        "how": plant.description,
        "task": plant.task,
        "rewards": [function.__name__ for function in plant.rewards],
        "steps": len(history),
        "settings": changed,
        "history": pack_history(history),
    }


# ---- the file


def pack_history(history: list[dict]) -> dict:
    """Return the history as metrics by name, in the form that the top of this file describes."""
    names = dict.fromkeys(name for metrics in history for name in metrics if not UNRECORDED.match(name))
    columns = {}
    for name in names:
        values = {m["step"]: rounded(m[name]) for m in history if name in m}
        is_constant = len(set(map(repr, values.values()))) == 1
        if len(values) < len(history):
            columns[name] = values
        else:
            columns[name] = next(iter(values.values())) if is_constant else list(values.values())
    return columns


def unpack_history(entry: dict) -> list[dict]:
    """Return the history of an entry as the trainer returned it: one dict of metrics per step."""
    history = [{"step": step} for step in range(1, entry["steps"] + 1)]
    for name, values in entry["history"].items():
        if isinstance(values, dict):
            values = {int(step): value for step, value in values.items()}
        for position, metrics in enumerate(history):
            if isinstance(values, dict):
                metrics |= {name: values[metrics["step"]]} if metrics["step"] in values else {}
            else:
                metrics[name] = values[position] if isinstance(values, list) else values
    return history


def entry_settings(entry: dict) -> dict:
    """Return all settings of an entry's run, as its grpo_config.json would contain them."""
    settings = GRPOConfig(**entry["settings"]).as_dict()
    return settings | {"precision": settings["precision"] or ("fp32-master" if settings["bf16"] else "fp32")}


def read(path: Path = FILE) -> dict:
    return read_json(path, {"machine": {}, "runs": []})


def write(path: Path, record: dict) -> None:
    """Replace the file atomically, with one line per run."""
    order = [(part, name) for part in PARTS for name in PARTS[part]]
    runs = sorted(record["runs"], key=lambda r: (order.index((r["part"], r["name"])), r["engine"], r["seed"]))
    lines = ",\n".join(json.dumps(entry, separators=(",", ":"), ensure_ascii=False) for entry in runs)
    write_atomically(path, f'{{"machine": {json.dumps(record["machine"])}, "runs": [\n{lines}\n]}}\n')


def jobs(names: list[str] | None = None) -> list[tuple]:
    """Return part, name, engine and seed of each run; all runs with their first seed come before any second seed."""
    numbered_jobs = [
        (number, part, name, engine, seed)
        for part in PARTS
        for name, plant in PARTS[part].items()
        for engine in plant.engines
        for number, seed in enumerate(plant.seeds or SEEDS[part])
        if names is None or name in names
    ]
    return [job[1:] for job in sorted(numbered_jobs, key=lambda job: (job[1] != "seen", job[0], job[3]))]


@command("notebooks/runs/record_faults.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    path = prepare_recording(args, "faults.json")
    record = read(path)
    if args.table:
        print(table(record))
        return
    record["machine"] = describe_machine("cpu")
    done = {(entry["part"], entry["name"], entry["engine"], entry["seed"]) for entry in record["runs"]}
    todo = [job for job in jobs(args.names) if job not in done]
    for job in todo[: 3 if args.fast else None]:
        record["runs"].append(make_entry(*job, 2 if args.fast else None))
        write(path, record)
        print(*job, flush=True)


# ---- what diagnose says of it


def diagnosed_names(entry: dict) -> list[str]:
    """Return the names of the findings of diagnose in a recorded run."""
    from grpo_lab.diagnose import diagnose

    return [finding.name for finding in diagnose(unpack_history(entry), settings=entry_settings(entry))]


def table(record: dict) -> str:
    """Return a table of how many planted runs each finding is found in, and a line for each miss and false alarm."""
    columns = [(part, engine) for part in PARTS for engine in BOTH]
    diagnosed = [(entry, diagnosed_names(entry)) for entry in record["runs"]]
    findings = list(dict.fromkeys(entry["finding"] for entry, _ in diagnosed if entry["finding"]))
    rows = {finding: {finding} for finding in findings} | {
        "all of them": set(findings),
        "alarms in healthy runs": {None},
    }
    lines = ["found of planted".ljust(26) + "".join(f"{part}, {engine}".rjust(13) for part, engine in columns)]
    for row, kinds in rows.items():
        lines.append(row.ljust(26) + "".join(_share(diagnosed, column, kinds).rjust(13) for column in columns))
    wrong = [(e, names) for e, names in diagnosed if (e["finding"] not in names if e["finding"] else names)]
    lines.append("")
    for entry, names in wrong:
        plant = f"{entry['part']}, {entry['engine']}, {entry['name']!r}, seed {entry['seed']}"
        planted = f"planted {entry['finding']}" if entry["finding"] else "healthy"
        lines.append(f"{plant}: {planted}; named {', '.join(names) or 'nothing'}")
    return "\n".join(lines)


def _share(diagnosed: list[tuple[dict, list[str]]], column: tuple[str, str], planted: set[str | None]) -> str:
    in_column = [(e["finding"], names) for e, names in diagnosed if (e["part"], e["engine"]) == column]
    selected = [(finding, names) for finding, names in in_column if finding in planted]
    count = sum(finding in names if finding else bool(names) for finding, names in selected)
    return f"{count}/{len(selected)}" if selected else "-"


def _parser() -> Parser:
    parser = recorder_parser("record_faults", __doc__, fast_help="three runs of two steps")
    parser.add_argument("--table", action="store_true", help="print what diagnose says of the file, and record nothing")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of runs, such as 'KL sign' (default: all)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
