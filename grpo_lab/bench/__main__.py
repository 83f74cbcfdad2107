"""`python -m grpo_lab.bench`: the command line."""

import argparse
import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo_lab.bench import against, gpu, process
from grpo_lab.checks import check_at_least, check_between
from grpo_lab.commands import Parser, command, writable_file
from grpo_lab.config.ranges import LARGEST_SEED

# What an option goes with; with anything else it would do nothing.
WITH = {
    "against": ("seeds", "steps"),
    "gpu": ("only", "shape", "device"),
}


@command("grpo_lab.bench")
def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    _check(args, parser)
    device = args.device or ("cuda" if args.gpu else "cpu")
    report, printed = _measured(args, device)
    print(printed)
    if args.json is not None:
        write_json(args.json, {"machine": machine(device)} | report)
    if args.gpu and (failed := gpu.failures(report)):
        print("failed, with its reason above: " + "; ".join(failed), file=sys.stderr)
        return 1
    return 0


def _measured(args: argparse.Namespace, device: str) -> tuple[dict, str]:
    """What was measured, and its table."""
    if args.against:
        report = against.compare(args.seeds, args.steps)
        return report, against.table(report)
    report = gpu.compare(args.shape, device, args.only)
    return report, gpu.table(report)


def write_json(file: Path, report: dict) -> None:
    """Whole or not at all."""
    partial = file.with_name(file.name + ".tmp")
    partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    partial.replace(file)


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
    } | {name: _version(name) for name in ("trl", "liger-kernel", "torchao")}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return process.NOT_INSTALLED


def _parser() -> Parser:
    parser = Parser(prog="python -m grpo_lab.bench", description="Speed and memory, as ratios.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--against", choices=["trl"], help="train a model here and there, alternating")
    what.add_argument("--gpu", action="store_true", help="Qwen2-0.5B on a card: rollout, updates, memory, TRL")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="with --gpu (default cuda)")
    parser.add_argument("--json", type=writable_file, help="also write everything measured to this file")
    one = parser.add_argument_group("with --against")
    one.add_argument("--steps", type=int, default=60, help=f"of a run, at least {against.WINDOW} (default 60)")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one pair of runs each (default 0 1 2)")
    two = parser.add_argument_group("with --gpu")
    two.add_argument("--only", choices=list(gpu.PARTS), nargs="+", help="(default: all, in under 9 minutes)")
    two.add_argument("--shape", choices=["qwen2-0.5b", "small"], default="qwen2-0.5b", help="(default qwen2-0.5b)")
    return parser


def _check(args: argparse.Namespace, parser: Parser) -> None:
    """Raise ValueError for what cannot be measured, before anything is."""
    _check_belongs(args, parser)
    check_at_least("steps", args.steps, against.WINDOW)  # which the running reward is over
    for seed in args.seeds:
        check_between("seeds", seed, 0, LARGEST_SEED)
    if args.against and not process.is_installed(args.against):
        raise ImportError(f"against is {args.against!r}; {args.against} is not installed; pip install trl==1.16.0")
    if args.gpu and args.device != "cpu":
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                "gpu: torch sees no NVIDIA card here; --device cpu --shape small shows that all of it works"
            )


def _check_belongs(args: argparse.Namespace, parser: Parser) -> None:
    chosen = next(mode for mode in WITH if getattr(args, mode))
    for name in dict.fromkeys(name for names in WITH.values() for name in names):
        if name not in WITH[chosen] and (value := getattr(args, name)) != parser.get_default(name):
            fitting = " or ".join(f"--{mode}" for mode, names in WITH.items() if name in names)
            raise ValueError(f"{name} is {value}; expected it only with {fitting}")


if __name__ == "__main__":
    sys.exit(main())
