"""`python -m grpo_lab.bench`: the command line."""

import sys
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec

from grpo_lab.base import Parser, command, writable_file
from grpo_lab.base.checks import InputError, InputPackageError, check_at_least, check_between
from grpo_lab.bench.comparison import WINDOW, compare, comparison_table
from grpo_lab.bench.process import run_in_process
from grpo_lab.bench.record import TRL, RunSpec, Setup, describe_machine, phase_table, write_json
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.config.settings import MAX_SEED


@command("grpo_lab.bench")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    check_at_least("steps", args.steps, WINDOW)
    for seed in args.seeds:
        check_between("seeds", seed, 0, MAX_SEED)
    on_cpu = args.device == "cpu"
    if not args.against and not on_cpu:
        raise InputError("device", args.device, "expected cpu without --against: the seconds are a processor's")
    if args.against and find_spec(args.against) is None:
        raise InputPackageError("against", args.against, f"{args.against} is not installed; pip install trl==1.16.0")
    from grpo_lab.bench import measure
    from grpo_lab.models import pick_device
    from grpo_lab.models.folders import find_model

    find_model(args.model, pick_device(args.device).type)
    setup = Setup(args.model, args.precision, args.device, args.steps, threads=1 if on_cpu else None)
    in_process = partial(run_in_process, threads=setup.threads)
    record = {"machine": describe_machine(args.device)}
    if on_cpu:
        phase_spec = RunSpec(replace(setup, steps=WINDOW), args.seeds[0])
        phases = in_process(measure.measure_phases, phase_spec)
        print(phase_table(phases))
        record["phases"] = asdict(phases)
    if args.against:
        comparison = compare(args.seeds, setup, partial(in_process, measure.measure_run))
        print(comparison_table(comparison))
        record |= comparison.as_dict()
    if args.json is not None:
        write_json(args.json, record)


def _parser() -> Parser:
    description = "Where the time of a step goes; and, with --against, speed and memory compared with TRL's."
    parser = Parser(prog="python -m grpo_lab.bench", description=description)
    add = parser.add_argument
    add("--against", choices=[TRL], help="train a model here and there, alternating, for ratios")
    add("--json", type=writable_file, help="also write everything measured to this file")
    add("--steps", type=int, default=60, help=f"number of steps of each run, at least {WINDOW} (default 60)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds, with one pair of runs for each (default 0 1 2)")
    model_help = (
        '"tiny", which is trained on sums, or "smollm2", "qwen", a folder or a hub id, on short sums (default tiny)'
    )
    add("--model", default="tiny", help=model_help)
    precisions = [name for name in PRECISIONS if name != "bf16"]  # TRL has no optimizer like that of "bf16"
    add("--precision", choices=precisions, default="fp32", help="(default fp32)")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="(default cpu)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
