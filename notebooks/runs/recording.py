"""What the recorders of this folder share: options, the file of the record, files of runs, numbers to few digits."""

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from grpo_lab.base import Parser, writable_file, writable_folder
from grpo_lab.base.checks import check_at_least, check_between
from grpo_lab.bench.record import write_json
from grpo_lab.config.settings import MAX_SEED

HERE = Path(__file__).parent
FAST_HELP = "hardly anything: only to see that everything works"  # a text for --fast


def recorder_parser(
    name: str,
    description: str,
    *,
    arms: Iterable[str] = (),
    seeds: Sequence[int] | None = None,
    fast_help: str = "",
    model: str = "",
    device: bool = False,
    threads: bool = False,
    output_dir: bool = False,
) -> Parser:
    """Return a parser with --json and those of the shared options that the recorder has.

    Args:
        name: Name of the script without ".py".
        description: Docstring of the script.
        arms: Choices of --arms, whose default is all of them; without any there is no such option.
        seeds: Default of --seeds, empty for the seeds of each arm; None: no such option.
        fast_help: What --fast records; "": no such option.
        model: Default of --model; "": no such option.
        device: Whether there is an option --device.
        threads: Whether there is an option --threads.
        output_dir: Whether there is an option --output_dir, the folder of the files of runs.
    """
    parser = Parser(
        prog=f"python notebooks/runs/{name}.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(seeds=None, fast=False, threads=1, output_dir=Path("outputs"))
    if arms:
        parser.add_argument("--arms", nargs="*", choices=list(arms), default=list(arms), help="(default: all)")
    if seeds is not None:
        default = " ".join(map(str, seeds)) or "those of each arm"
        parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds) or None, help=f"(default: {default})")
    if model:
        parser.add_argument("--model", default=model, help=f'"{model}", "tiny" or a folder (default {model})')
    if device:
        parser.add_argument("--device", help="default: the GPU, if there is one")
    if threads:
        parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    if fast_help:
        parser.add_argument("--fast", action="store_true", help=fast_help)
    if output_dir:
        folder = Path("outputs") / name
        parser.add_argument("--output_dir", type=writable_folder, default=folder, help="folder of the runs")
    parser.add_argument("--json", type=writable_file, help="the record (default: beside this script)")
    return parser


def prepare_recording(args: argparse.Namespace, file_name: str) -> Path:
    """Check seeds and threads, set the threads of torch, and return the file of the record, whose folder exists.

    Args:
        args: Options of a `recorder_parser`.
        file_name: Name of the record beside the recorders, or in --output_dir with --fast; --json takes precedence.
    """
    check_at_least("threads", args.threads, 1)
    for seed in args.seeds or ():
        check_between("seeds", seed, 0, MAX_SEED)
    torch.set_num_threads(args.threads)
    file = args.json or (args.output_dir if args.fast else HERE) / file_name
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def read_json(file: Path, default: dict | None = None) -> dict:
    """Return the contents of a JSON file; `default`, unless it is None, if there is no such file."""
    if default is not None and not file.is_file():
        return default
    return json.loads(file.read_text(encoding="utf-8"))


def is_recorded(runs: list[dict], **labels) -> bool:
    """Return whether one of the runs has these labels, such as arm="plain" and seed=0."""
    return any(labels.items() <= run.items() for run in runs)


def rounded(value, digits: int = 4):
    """Round a float to significant digits, of which four are enough for a plot; other values stay, NaN included."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) and math.isfinite(value) else value


def metric_columns(history: list[dict], names: Iterable[str]) -> dict[str, list]:
    """Return those of the named metrics that the first step has, each as a list with one rounded value per step."""
    return {name: [rounded(step.get(name)) for step in history] for name in names if name in history[0]}


class RunFiles:
    """Files in a folder, one for each run and for each measurement of an untrained model; processes can share them."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, arm: str, seed: int) -> Path:
        return self.folder / f"{_stem(arm)}-{seed}.json"

    def is_complete(self, arm: str, seed: int) -> bool:
        """Return whether the run's file exists and has the measures "after" the run."""
        return bool(read_json(self.path(arm, seed), {}).get("after"))

    def read_all(self, arms: Iterable[str]) -> list[dict]:
        """Return all runs in the folder, in the order of the arms and of their seeds."""
        runs_of_arms = (map(read_json, self.folder.glob(f"{_stem(arm)}-*.json")) for arm in arms)
        return [run for runs in runs_of_arms for run in sorted(runs, key=lambda run: run["seed"])]

    def measure_untrained_once(self, name: str, measure: Callable[[], dict]) -> dict:
        """Return a measurement of the untrained model, which is made unless its file exists."""
        file = self._untrained_path(name)
        if not file.is_file():
            write_json(file, measure())
        return read_json(file)

    def read_untrained(self, names: Iterable[str]) -> dict[str, dict]:
        """Return the measurements in the folder by their names."""
        return {name: read_json(file) for name in names if (file := self._untrained_path(name)).is_file()}

    def _untrained_path(self, name: str) -> Path:
        return self.folder / f"base_{_stem(name)}.json"


def _stem(name: str) -> str:
    """Return the name with lower-case letters, digits and underscores alone, for the name of a file."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower())
