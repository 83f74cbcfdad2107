"""`python -m grpo_lab.bench`: the command line."""

import json
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from grpo_lab.bench import against
from grpo_lab.bench.process import run_worker
from grpo_lab.commands import Parser, command, writable_file
from grpo_lab.commands.checks import InputError, InputPackageError, check_at_least, check_between
from grpo_lab.commands.parser import installed_version, write_at_once
from grpo_lab.config.precision import PRECISIONS, slow_here
from grpo_lab.config.settings import LARGEST_SEED


@command("grpo_lab.bench")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m grpo_lab.bench", description="Where the time of a step goes; or speed and memory beside TRL's."
    )
    parser.add_argument("--against", choices=["trl"], help="train a model here and there, alternating, for ratios")
    parser.add_argument("--json", type=writable_file, help="also write everything measured to this file")
    parser.add_argument("--steps", type=int, help=f"of a run, at least {against.WINDOW} (default 60; alone 5)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one pair of runs each (default 0 1 2)")
    models = '"tiny", which is trained on sums, or "smollm2", a folder or a hub id, on short sums (default tiny)'
    parser.add_argument("--model", default="tiny", help=models)
    modes = [mode for mode in PRECISIONS if mode != "bf16"]  # whose optimizer is ours alone
    parser.add_argument("--precision", choices=modes, default="fp32", help="(default fp32)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default cpu)")
    args = parser.parse_args(arguments)
    args.steps = args.steps if args.steps is not None else 60 if args.against else against.WINDOW
    check_at_least("steps", args.steps, against.WINDOW)  # which the running reward is over
    for seed in args.seeds:
        check_between("seeds", seed, 0, LARGEST_SEED)
    if args.against and find_spec(args.against) is None:
        raise InputPackageError("against", args.against, f"{args.against} is not installed; pip install trl==1.16.0")
    from grpo_lab.bench import phases
    from grpo_lab.models import pick_device
    from grpo_lab.models.folders import usable_folder

    if not args.against and args.device != "cpu":
        raise InputError("device", args.device, "expected cpu without --against: the seconds are a processor's")
    if said := slow_here(pick_device(args.device), PRECISIONS[args.precision]):
        print(said, file=sys.stderr)
    usable_folder(args.model, args.device)
    setup = {name: getattr(args, name) for name in ("model", "precision", "device", "steps")}
    if args.against:
        report = against.compare(args.seeds, setup)
        print(against.table(report))
    else:
        report = run_worker("grpo_lab.bench.phases", setup | {"threads": 1, "seed": args.seeds[0]})
        print(phases.table(report))
    if args.json is not None:
        write_json(args.json, {"machine": machine(args.device)} | report)


def write_json(file: Path, report: dict) -> None:
    """Whole or not at all."""
    write_at_once(file, json.dumps(report, indent=1) + "\n")


def machine(device: str = "cpu") -> dict:
    """What the figures were measured on and with."""
    import torch
    import transformers

    return {
        "platform": platform.platform(terse=True),
        "processor": platform.machine(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    } | {name: installed_version(name) for name in ("trl", "liger-kernel", "torchao")}


if __name__ == "__main__":
    sys.exit(main())
