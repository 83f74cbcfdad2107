"""`python -m grpo_lab.course`: list, build and release the assignments, grade what comes back."""

import os
import secrets
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from grpo_lab.base import Parser, command, writable_folder
from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.course import release
from grpo_lab.course.exercise import fresh_seed
from grpo_lab.course.exercises import ASSIGNMENTS, all_exercises, find_assignment
from grpo_lab.course.grading.grade import grade_class
from grpo_lab.course.grading.tables import write_totals
from grpo_lab.course.release.gradescope import export_gradescope
from grpo_lab.course.variant import VARIANTS, ClassKey, key_text


class DrawnSecret(str):
    """The secret of a class for which `--variant` is given without one: it is drawn when the option is read."""


@command("grpo_lab.course")
def main(arguments: list[str] | None = None) -> int:
    options = vars(_parser().parse_args(arguments))
    run_command = options.pop("run_command")
    return run_command(**options)


def list_exercises() -> int:
    exercises = all_exercises()
    print(f"{'notebook':8}  {'function':28} {'points':>6} {'minutes':>7} {'difficulty':>10} {'mistakes known':>14}")
    for name, exercise in exercises.items():
        columns = f"{exercise.points:6} {exercise.minutes:7} {exercise.difficulty:10} {len(exercise.mistakes):14}"
        print(f"{exercise.notebook:8}  {name:28} {columns}")
    total_points = sum(exercise.points for exercise in exercises.values())
    total_minutes = sum(exercise.minutes for exercise in exercises.values())
    print(f"{len(exercises)} exercises, {total_points} points, {total_minutes / 60:.0f} hours")
    return 0


def write_assignments(folder: Path) -> int:
    return _print_paths(release.build(folder))


def release_assignments(folder: Path, number: str | None, lang: str, variant: str | None, variants: Path | None) -> int:
    if lang != "en" and find_spec("babel") is None:
        raise InputPackageError("lang", lang, 'babel is not installed; pip install "grpo-lab[chinese]"')
    _print_paths(release.release(folder, number, _class_key(variant, variants), lang))
    if isinstance(variant, DrawnSecret):
        print(f"The secret of this class is {variant}: keep it, and give it to grade with --variant {variant}")
    return 0


def _print_paths(paths: Iterable[Path]) -> int:
    for path in paths:
        print(path)
    return 0


def grade_folder(folder: Path, variant: str | None, variants: Path | None, lang: str | None = None, **options) -> int:
    if lang is not None:
        os.environ["GRPO_LAB_LANG"] = lang  # only the pages follow it: tables and printed lines stay English
    return grade_class(folder, key=_class_key(variant, variants), **options)


def print_key(number: str | None, variant: str, variants: Path | None) -> int:
    assignments = list(ASSIGNMENTS.values()) if number is None else [find_assignment(number)]
    key = _key(variant, variants)
    texts = [key_text(key, assignment.number) for assignment in assignments]
    print("\n\n".join(text for text in texts if text))
    return 0


def _class_key(secret: str | None, file: Path | None) -> ClassKey | None:
    """Return the key of the class with this secret; None without a secret, for a class without variants."""
    if secret is not None:
        return _key(secret, file)
    if file is not None:
        raise InputError("variants", str(file), "it is read with --variant SECRET only")
    return None


def _key(secret: str, file: Path | None) -> ClassKey:
    if not secret.strip():
        raise InputError("variant", secret, "expected the secret of a class, any text")
    return ClassKey(secret, file or VARIANTS)


def export_to_gradescope(
    folder: Path, seed: int | None, number: str | None, variant: str | None, variants: Path | None
) -> int:
    seed = fresh_seed(seed)
    print(export_gradescope(folder, seed, number, _class_key(variant, variants)))
    print(f"upload it as the autograder of an assignment; hidden inputs with seed {seed}")
    return 0


GRADE_DESCRIPTION = (
    "Mark submissions, each in a sandbox: bubblewrap on Linux, else Docker. After an interruption, run it again."
)
SECRET_HELP = "secret of the class, as given to `release`"


def _parser() -> Parser:
    parser = Parser(prog="python -m grpo_lab.course", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def add(name: str, run_command: Callable, description: str) -> Parser:
        subparser = commands.add_parser(name, help=description, description=description)
        subparser.set_defaults(run_command=run_command)
        return subparser

    add("list", list_exercises, "Every exercise, with points and minutes.")
    description = "Write the assignment notebooks; a file that would not change is left alone."
    build_options = add("build", write_assignments, description)
    folder = Path("notebooks/assignments")
    build_options.add_argument("folder", type=writable_folder, nargs="?", default=folder, metavar="DIR")
    _add_release_options(add("release", release_assignments, "Write the students' folder: assignments and a README."))
    _add_grade_options(add("grade", grade_folder, GRADE_DESCRIPTION))
    key_options = add("key", print_key, "For the teacher: the formulas of a class, and the right functions.")
    key_options.add_argument("--assignment", dest="number", metavar="NN", help="number, such as 05 (default: all)")
    _add_variant_options(key_options, SECRET_HELP, required=True)
    totals_options = add("totals", write_totals, "One table over assignments, from the folders that `grade` wrote.")
    totals_options.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="a folder with grades.json")
    totals_options.add_argument("--output", type=Path, default=Path("totals.csv"), help="(default: totals.csv)")
    _add_export_options(add("export-gradescope", export_to_gradescope, "Write an autograder."))
    return parser


def _add_release_options(parser: Parser) -> None:
    parser.add_argument("folder", type=writable_folder, metavar="DIR", help="a new or empty folder")
    parser.add_argument("--assignment", dest="number", metavar="NN", help="number, such as 05 (default: all)")
    lang_help = "language of the texts (default en); code is in English"
    parser.add_argument("--lang", choices=("en", "zh_CN"), default="en", help=lang_help)
    secret_help = "draw other formulas for this class; without SECRET, one is made up and printed"
    _add_variant_options(parser, secret_help, nargs="?", const=DrawnSecret(secrets.token_hex(8)))


def _add_grade_options(parser: Parser) -> None:
    option = parser.add_argument
    option("folder", type=Path, metavar="DIR", help="one folder, notebook or zip per student; or a class as a zip")
    option("--output", type=writable_folder, help="folder for the results (default: DIR-grades, next to DIR)")
    option(
        "--assignment",
        dest="number",
        metavar="NN",
        help="number, such as 02 (default: what most of the class handed in)",
    )
    option("--seed", type=int, help="seed of the fresh inputs, not 0; drawn if left out, and reported")
    option("--jobs", type=int, default=1, help="notebooks at the same time (default 1)")
    option("--time-limit", type=float, default=30.0, help="seconds for a cell or a function (default 30)")
    option("--trust", action="store_true", help="run submissions without a sandbox where there is none")
    option("--lang", choices=("en", "zh_CN"), help="language of the pages (default: the machine's)")
    _add_variant_options(parser, SECRET_HELP)


def _add_export_options(parser: Parser) -> None:
    parser.add_argument("folder", type=writable_folder, metavar="DIR", help="a new or empty folder")
    seed_help = "seed of the inputs that students have not seen; drawn if left out"
    parser.add_argument("--seed", type=int, help=seed_help)
    assignment_help = "number, such as 02: a notebook for another assignment earns nothing"
    parser.add_argument("--assignment", dest="number", metavar="NN", help=assignment_help)
    _add_variant_options(parser, SECRET_HELP)


def _add_variant_options(parser: Parser, secret_help: str, **settings) -> None:
    """Add `--variant`, with more settings of `add_argument`, and `--variants`."""
    parser.add_argument("--variant", metavar="SECRET", help=secret_help, **settings)
    file_help = "file of the formulas to draw from (default: docs/teaching/variants.yaml of a checkout)"
    parser.add_argument("--variants", type=Path, metavar="FILE", help=file_help)


if __name__ == "__main__":
    sys.exit(main())
