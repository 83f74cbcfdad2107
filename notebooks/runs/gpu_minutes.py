"""Measure on a GPU for fifteen minutes, the most valuable part first; a part that is cut off keeps its record.

    python notebooks/runs/gpu_minutes.py tests      the tests that need a GPU
    python notebooks/runs/gpu_minutes.py memory     the peak of each mode at Qwen2-0.5B's size, beside its plan
    python notebooks/runs/gpu_minutes.py trl        a step beside TRL's: the tiny model, then SmolLM2
    python notebooks/runs/gpu_minutes.py qwen       what a step of a real Qwen costs in each mode
    python notebooks/runs/gpu_minutes.py memory --try-out --output /tmp/out    on a CPU, at a small size

Each call runs one part. A part is a list of commands; each command runs in its own process with a time limit in
seconds. The record (`PART.json`) is rewritten before and after each command, and the output of a command is written to
`PART-N.txt` line by line, so both exist after an interruption.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS = Path(__file__).parent
MODES = ("bf16", "fp32-master", "fp16", "fp32", "bf16-naive")
MEASURE = """
import json, sys
sys.path.insert(0, {root!r})
from tests.support import known_shape
print(json.dumps(known_shape.measure({spec!r})))
"""


def commands(part: str, try_out: bool, output: Path) -> list[tuple[list[str], int]]:
    """Return the commands of a part, the most informative first, each with its time limit in seconds."""
    python, device = sys.executable, "cpu" if try_out else "cuda"
    if part == "tests":
        return [([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"], 400)]
    if part == "memory":
        size = {"rows": 4, "num_generations": 2, "prompt": 8, "completion": 16, "steps": 2, "shape": "small"}
        if not try_out:
            size = {"rows": 8, "num_generations": 8, "prompt": 256, "completion": 512, "steps": 3, "shape": "qwen2"}
        spec = size | {"device": device}
        cases = [(mode, checkpointing) for checkpointing in (True, False) for mode in MODES]
        specs = [spec | {"mode": mode, "checkpointing": checkpointing} for mode, checkpointing in cases]
        limit = 600 if try_out else 60
        return [([python, "-c", MEASURE.format(root=str(ROOT), spec=spec)], limit) for spec in specs]
    if part == "trl":
        bench = [python, "-m", "grpo_lab.bench", "--against", "trl", "--device", device, "--seeds", "0"]
        real = ["--model", "smollm2", "--precision", "fp32-master", "--steps", "10"]
        sizes = [["--steps", "5"]] if try_out else [["--steps", "20"], real]
        return [([*bench, *size, "--json", str(output / f"trl_{n}.json")], 240) for n, size in enumerate(sizes)]
    record = [python, str(RUNS / "record_qwen_modes.py"), "--device", device, "--json", str(output / "qwen_modes.json")]
    return [(record + (["--model", "tiny", "--steps", "1"] if try_out else ["--steps", "3"]), 400)]


def run(command: list[str], limit: int, log: Path) -> dict:
    """Run a command; return its exit code, seconds, log and last printed line (parsed, if it is JSON)."""
    started, environment = time.perf_counter(), os.environ | {"PYTHONUNBUFFERED": "1"}  # lines are written at once
    with log.open("w", encoding="utf-8") as file:
        try:
            process = subprocess.run(command, stdout=file, stderr=file, cwd=ROOT, env=environment, timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code = None  # the command exceeded its limit
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    results = [line for line in lines if line.startswith("{")] or [lines[-1]]
    try:
        result = json.loads(results[-1])
    except ValueError:
        result = results[-1]
    return {"exit": code, "seconds": round(time.perf_counter() - started, 1), "log": log.name, "result": result}


def write(folder: Path, part: str, records: list[dict]) -> None:
    """Replace the record of a part atomically."""
    unfinished = folder / f"{part}.unfinished"
    unfinished.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(folder / f"{part}.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("tests", "memory", "trl", "qwen"))
    parser.add_argument("--output", type=Path, default=ROOT / "outputs" / "gpu", help="(default outputs/gpu)")
    parser.add_argument("--try-out", action="store_true", help="on a CPU, at a small size")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    records: list[dict] = []
    for number, (command, limit) in enumerate(commands(args.part, args.try_out, args.output)):
        log, entry = args.output / f"{args.part}-{number}.txt", {"command": " ".join(command[1:])[-160:]}
        write(args.output, args.part, [*records, entry | {"exit": "not yet", "log": log.name}])
        records.append(entry | run(command, limit, log))
        write(args.output, args.part, records)
        print(json.dumps(records[-1]), flush=True)
    sys.exit(max(record["exit"] != 0 for record in records))


if __name__ == "__main__":
    main()
