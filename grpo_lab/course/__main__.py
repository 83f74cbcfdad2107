"""`python -m grpo_lab.course`: list, build and release the assignments, grade what comes back."""

import sys
from collections.abc import Callable
from pathlib import Path

from grpo_lab.base import Parser, command, writable_folder
from grpo_lab.course.exercise import fresh_seed


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


def write(folder: Path, action: str, assignment: str | None = None) -> int:
    from grpo_lab.course import release

    for path in getattr(release, action)(folder, assignment):
        print(path)
    return 0


def grade_folder(folder: Path, **options) -> int:
    from grpo_lab.course.grading.command import grade_class

    return grade_class(folder, **options)


def write_totals(folders: list[Path], output: Path) -> int:
    from grpo_lab.course.grading.totals import write_totals

    return write_totals(folders, output)


def export_to_gradescope(folder: Path, seed: int | None, assignment: str | None) -> int:
    from grpo_lab.course.release.gradescope import export_gradescope

    seed = fresh_seed(seed)
    print(export_gradescope(folder, seed, assignment))
    print(f"upload it as the autograder of an assignment; hidden inputs with seed {seed}")
    return 0


def _parser() -> Parser:
    parser = Parser(prog="python -m grpo_lab.course", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def add(name: str, run, says: str, folder: str = "", kind: Callable = writable_folder, **settings) -> Parser:
        subparser = commands.add_parser(name, help=says, description=says)
        subparser.set_defaults(run=run, **settings)
        if folder:
            subparser.add_argument("folder", type=kind, metavar="DIR", help=folder)
        return subparser

    add("list", list_exercises, "Every exercise, with points and minutes.")
    says = "Write the assignment notebooks anew; unchanged ones are left alone."
    build_options = add("build", write, says, action="build")
    folder = Path("notebooks/assignments")
    build_options.add_argument("folder", type=writable_folder, nargs="?", default=folder, metavar="DIR")
    says = "Write the students' folder: assignments and a README."
    release_options = add("release", write, says, "a new or empty folder", action="release")
    release_options.add_argument("--assignment", metavar="NN", help="such as 05 (default: all)")
    grade_options = add(
        "grade", grade_folder, GRADE, "one folder, notebook or zip a student; or a class as a zip", Path
    )
    option = grade_options.add_argument
    option("--output", type=writable_folder, help="folder for the results (default: DIR-grades, beside DIR)")
    option("--assignment", metavar="NN", help="such as 02 (default: what most of the class handed in)")
    option("--seed", type=int, help="of the fresh inputs, not 0; drawn if left out, and reported")
    option("--jobs", type=int, default=1, help="notebooks at the same time (default 1)")
    option("--time-limit", type=float, default=30.0, help="seconds for a cell or a function (default 30)")
    option("--trust", action="store_true", help="run submissions without a sandbox where there is none")
    totals_options = add("totals", write_totals, "One table over assignments, from the folders that `grade` wrote.")
    totals_options.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="a folder with grades.json")
    totals_options.add_argument("--output", type=Path, default=Path("totals.csv"), help="(default: totals.csv)")
    export_options = add("export-gradescope", export_to_gradescope, "Write an autograder.", "a new or empty folder")
    export_options.add_argument("--seed", type=int, help="of the inputs that students have not seen; drawn if left out")
    export_options.add_argument("--assignment", metavar="NN", help="such as 02: what else is handed in earns nothing")
    return parser


GRADE = (
    "Mark submissions, each in a sandbox: bubblewrap on Linux, else Docker. An interrupted grading is simply run again."
)


if __name__ == "__main__":
    sys.exit(main())
