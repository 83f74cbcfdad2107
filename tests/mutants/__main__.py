"""Plant every mutant, and print those that survive: `python -m tests.mutants`."""

import argparse
import sys
import time

from tqdm import tqdm

from tests.mutants.mutant import (
    Mutant,
    anchored_modules,
    check_entries,
    errata_mutants,
    line_mutants,
    reason_equivalent,
)
from tests.mutants.pool import MutantResult, WorkerError, run_mutants


def main(arguments: list[str] | None = None) -> int:
    args = _parse(arguments)
    mutants, started = _chosen(args), time.monotonic()
    results = []
    try:
        for result in tqdm(run_mutants(mutants, args.workers), "mutants", len(mutants), leave=False, disable=None):
            results.append(result)
            _report(result, args)
    except WorkerError as error:
        print(f"The mutants could not be tested: {error}", file=sys.stderr)
        return 2
    survived = sum(result.killer is None for result in results)
    print(f"{len(mutants)} mutants in {time.monotonic() - started:.0f} s")
    print(f"mutants: {len(results) - survived} killed, {survived} survived")
    return int(survived != (len(mutants) if args.family == "equivalent" else 0))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--family",
        choices=("all", "errata", "lines", "equivalent"),
        default="all",
        help="errata: mistakes in circulation; lines: every anchored line; equivalent: those that have to survive",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose file or name contains this")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--verbose", action="store_true", help="say of each mutant which test killed it")
    return parser.parse_args(arguments)


def _chosen(args: argparse.Namespace) -> list[Mutant]:
    lines = [m for path in anchored_modules() for m in line_mutants(path)]
    check_entries(lines)
    families = {
        "errata": errata_mutants,
        "lines": lambda: [m for m in lines if not reason_equivalent(m)],
        "equivalent": lambda: [m for m in lines if reason_equivalent(m)],
    }
    names = ("errata", "lines") if args.family == "all" else (args.family,)
    return [m for name in names for m in families[name]() if args.only in f"{m.path} {m.name}"]


def _report(result: MutantResult, args: argparse.Namespace) -> None:
    mutant = result.mutant
    if (result.killer is None) != (args.family == "equivalent"):
        fate = "SURVIVED" if result.killer is None else f"KILLED by {result.killer}"
        tqdm.write(f"{fate}: {mutant.name} ({result.detail})\n{mutant.diff()}\n")
    elif args.verbose:
        tqdm.write(f"{result.seconds:.2f} s: {mutant.path} {mutant.name}\n    {result.killer}: {result.detail}")


if __name__ == "__main__":
    sys.exit(main())
