"""`python -m grpo_lab.course`: list, build and release the assignments, grade what comes back, prove the checker."""

import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from grpo_lab.checks import check_at_least, check_between
from grpo_lab.commands import Parser, command, writable_folder
from grpo_lab.config.ranges import LARGEST_SEED


@command("grpo_lab.course")
def main(arguments: list[str] | None = None) -> int:
    args = vars(_parser().parse_args(arguments))
    run = args.pop("run")
    return run(**args)


def list_exercises() -> int:
    from grpo_lab.course.exercises import EXERCISES

    print(f"{'notebook':8}  {'function':28} {'points':>6} {'minutes':>7} {'difficulty':>10} {'mistakes known':>14}")
    for name, e in EXERCISES.items():
        print(f"{e.notebook:8}  {name:28} {e.points:6} {e.minutes:7} {e.difficulty:10} {len(e.misconceptions):14}")
    total = [sum(getattr(e, field) for e in EXERCISES.values()) for field in ("points", "minutes")]
    print(f"{len(EXERCISES)} exercises, {total[0]} points, {total[1] / 60:.0f} hours")
    return 0


def build_assignments(folder: Path) -> int:
    from grpo_lab.course.release import build

    for path in build(folder):
        print(path)
    return 0


def release_to(folder: Path) -> int:
    from grpo_lab.course.release import release

    for path in release(folder):
        print(path)
    return 0


def grade_folder(
    folder: Path, seed: int | None, jobs: int, time_limit: float, memory_limit: float, output: Path | None
) -> int:
    from grpo_lab.course.grading.grade import grade
    from grpo_lab.course.grading.report import write_report
    from grpo_lab.course.grading.sandbox.run import Limits

    check_at_least("jobs", jobs, 1)
    check_between("time_limit", time_limit, 1, 86_400)  # below, right answers would fail
    check_between("memory_limit", memory_limit, 0.5, 1024)
    seed = _drawn() if seed is None else _checked(seed)
    output = output or folder.resolve().with_name(f"{folder.resolve().name}-grades")
    limits = Limits(time_limit, int(memory_limit * 2**30))
    grading = grade(folder, seed, jobs=jobs, limits=limits, hidden=[output])
    if not grading.graded:
        raise ValueError(f"folder is {folder}; expected one folder or notebook a student, and found none")
    write_report(grading, output)
    for wall, why in grading.walls.items():
        if why:
            print(f"note: without the wall '{wall}': {why}")
    print(f"{len(grading.students)} students, seed {seed}: {output / 'grades.csv'}, and a page for each in students/")
    return 0


def prove_checker(notebooks: list[str]) -> int:
    from grpo_lab.course.proof import prove, table

    proofs = prove(notebooks)
    print(table(proofs))
    return 1 if any(proof.gaps for proof in proofs) else 0


def export_to_nbgrader(folder: Path, seed: int | None) -> int:
    from grpo_lab.course.release import export

    seed = _drawn() if seed is None else _checked(seed)
    for path in export(folder, seed):
        print(path)
    print(f"hidden tests with seed {seed}; nbgrader_config.py is beside source/")
    return 0


def _drawn() -> int:
    """A seed that no student can know; never 0, which is the seed of the inputs that they see."""
    return 1 + secrets.randbelow(2**31 - 1)


def _checked(seed: int) -> int:
    check_between("seed", seed, 1, LARGEST_SEED)  # students know the inputs of seed 0
    return seed


def _parser() -> Parser:
    parser = Parser(prog="python -m grpo_lab.course", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def add(name: str, run, says: str, folder: str = "", kind: Callable[[str], Path] = writable_folder) -> Parser:
        one = commands.add_parser(name, help=says, description=says)
        one.set_defaults(run=run)
        if folder:
            one.add_argument("folder", type=kind, metavar="DIR", help=folder)
        return one

    add("list", list_exercises, "Every exercise, with points and minutes.")
    built = add("build", build_assignments, "Write the assignment notebooks anew; unchanged ones are left alone.")
    built.add_argument("folder", type=writable_folder, nargs="?", default=Path("notebooks/assignments"), metavar="DIR")
    add("release", release_to, "Write the students' folder: assignments and a README.", "a new or empty folder")
    says = "Mark submissions, each behind walls."
    graded = add("grade", grade_folder, says, "one folder or notebook a student", kind=Path)
    graded.add_argument("--seed", type=int, help="of the fresh inputs, not 0; drawn if left out, and reported")
    graded.add_argument("--jobs", type=int, default=1, help="notebooks at the same time (default 1)")
    graded.add_argument("--time-limit", type=float, default=30.0, help="seconds for a cell or a function (default 30)")
    graded.add_argument("--memory-limit", type=float, default=4.0, help="GiB for a process (default 4; Linux only)")
    graded.add_argument(
        "--output", type=writable_folder, help="folder for the results (default: DIR-grades, beside DIR)"
    )
    proved = add("prove", prove_checker, "Are all right answers accepted, all wrong ones rejected, and named?")
    proved.add_argument("notebooks", nargs="*", help="such as 02 05; none means all")
    exported = add("export-nbgrader", export_to_nbgrader, "Write an nbgrader course.", "a new or empty folder")
    exported.add_argument("--seed", type=int, help="of the hidden tests; drawn if left out, and reported")
    return parser


if __name__ == "__main__":
    sys.exit(main())
