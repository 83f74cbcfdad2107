"""`python -m grpo_lab.bench`: the command line."""

import argparse
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grpo_lab.bench import against, gpu, head
from grpo_lab.checks import check_at_least


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        _check(args)
    except ValueError as error:
        parser.error(str(error))
    device = args.device or ("cuda" if args.gpu else "cpu")
    if args.against:
        if not head.is_installed("trl"):
            parser.error("--against trl: trl is not installed; pip install trl==1.16.0")
        report = against.compare(args.seeds, args.steps, args.accuracy, args.threads or 1, args.model)
        printed = against.table(report)
    elif args.gpu:
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            parser.error("--gpu: torch sees no NVIDIA card here; --device cpu --shape small shows that all of it works")
        report = gpu.compare(args.shape, device, args.only)
        printed = gpu.table(report)
    else:
        report = head.compare(args.tokens, device, args.dtype, args.repeats, args.threads)
        printed = head.table(report)
    print(printed)
    if args.json is not None:
        write_json(args.json, {"machine": machine(device)} | report)
    if args.gpu and (failed := gpu.failures(report)):
        parser.exit(1, "failed, with its reason above: " + "; ".join(failed) + "\n")


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
        return head.NOT_INSTALLED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m grpo_lab.bench", description="Speed and memory, as ratios.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--against", choices=["trl"], help="train the tiny model here and there, alternating")
    what.add_argument("--head", action="store_true", help="the log-prob head at Qwen2-0.5B's shape, four ways")
    what.add_argument("--gpu", action="store_true", help="Qwen2-0.5B on a card: rollout, updates, memory, TRL")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="(default: --head cpu, --gpu cuda)")
    parser.add_argument("--json", type=Path, help="also write everything measured to this file")
    parser.add_argument("--threads", type=int, help="torch threads (default: --against 1, --head torch's own)")
    one = parser.add_argument_group("with --against")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one pair of runs each (default 0 1 2)")
    one.add_argument("--steps", type=int, default=60, help=f"steps a run (default 60, at least {against.WINDOW})")
    one.add_argument("--accuracy", type=float, default=0.8, help="time is taken to this accuracy (default 0.8)")
    one.add_argument("--model", default="tiny", help='"tiny" or a folder (default tiny)')
    two = parser.add_argument_group("with --head")
    two.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048], help="(default 512 1024 2048)")
    two.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32")
    two.add_argument("--repeats", type=int, default=3, help="the fastest of so many is reported (default 3)")
    three = parser.add_argument_group("with --gpu")
    three.add_argument("--only", choices=list(gpu.PARTS), nargs="+", help="(default: all, in under 9 minutes)")
    three.add_argument("--shape", choices=["qwen2-0.5b", "small"], default="qwen2-0.5b", help="(default qwen2-0.5b)")
    return parser


def _check(args: argparse.Namespace) -> None:
    """Raise ValueError for a number that cannot be used."""
    check_at_least("--steps", args.steps, against.WINDOW)  # which the running reward is over
    check_at_least("--threads", 1 if args.threads is None else args.threads, 1)
    check_at_least("--repeats", args.repeats, 1)
    if not 0 < args.accuracy <= 1:
        raise ValueError(f"--accuracy is {args.accuracy}; it must be greater than 0 and at most 1")
    for tokens in args.tokens:
        if not 1 <= tokens <= head.ROW and (tokens < 1 or tokens % head.ROW):
            raise ValueError(f"--tokens is {tokens}; it must be 1 to {head.ROW}, or a multiple of {head.ROW}")


if __name__ == "__main__":
    main()
