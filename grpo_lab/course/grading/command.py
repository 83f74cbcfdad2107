"""`python -m grpo_lab.course grade`: read what the teacher gives, grade, and write all that a teacher takes away."""

import sys
from pathlib import Path

from tqdm import tqdm

from grpo_lab import __version__
from grpo_lab.checks import check_at_least, check_between
from grpo_lab.course.grading.classpage import averaged, class_page, headline, mistakes, to_discuss, to_look_at
from grpo_lab.course.grading.doubts import doubts
from grpo_lab.course.grading.grade import Grading, grade
from grpo_lab.course.grading.people import read_deadline, read_roster, read_times
from grpo_lab.course.grading.platforms import for_canvas, for_gradescope_import, for_moodle, gradescope_results
from grpo_lab.course.grading.pseudonyms import Pseudonyms
from grpo_lab.course.grading.records import Records, write_whole
from grpo_lab.course.grading.report import plain, write_report
from grpo_lab.course.grading.results import Extras, Result, read_points, results
from grpo_lab.course.grading.sandbox.run import Limits
from grpo_lab.course.grading.settings import with_remembered
from grpo_lab.course.grading.sheet import read_rubric, read_sheets, write_sheets
from grpo_lab.course.seeds import checked_seed, drawn_seed

STOPPED = 130  # the exit code of a command that an interrupt ended


def grade_class(folder: Path, *, output: Path | None, results_json: Path | None, **options) -> int:
    """Everything that the command does; the options are those of `python -m grpo_lab.course grade --help`."""
    output = output or folder.resolve().with_name(f"{folder.resolve().stem}-grades")
    records = Records(output / "records")
    options, records.settings = _settings(records, output, options)
    check_at_least("jobs", options["jobs"], 1)
    check_between("time_limit", options["time_limit"], 1, 86_400)  # below, right answers would fail
    check_between("memory_limit", options["memory_limit"], 0.5, 1024)
    listed = records.settings.get("names")
    names = Pseudonyms(Path(listed)) if listed else None
    named = names.with_names if names else dict
    extras, rubric = _extras(named, **options), read_rubric(options["rubric"])
    read_sheets(output, options["written"], named)  # a slip in it shall not wait for the end
    if names:
        options["only"] = [names.name(one) for one in options["only"]]
        extras.times = {names.name(student): time for student, time in extras.times.items()}
    seed = _seed(records, output, options["seed"], again=options["resume"] or bool(options["only"]))
    grading = _graded(folder, seed, records, [output], extras.roster, **options)
    extras.written, told = read_sheets(output, options["written"], named)  # somebody may have typed meanwhile
    for line in told:
        print(f"note: {_printable(line)}")
    found = results(grading, extras)
    grading.doubts = doubts(grading, found, extras)
    if hidden := names if options["pseudonyms"] else None:
        extras = hidden.hide(grading, found, extras)
    write_report(grading, output, extras, found)
    _write_the_rest(grading, found, extras, output, rubric, pseudonymous=hidden is not None)
    if results_json is not None and grading.finished:
        if len(found) != 1:
            raise ValueError(f"results_json is for a single submission; expected one student, and found {len(found)}")
        write_whole(results_json, gradescope_results(grading, found[0]))
    _summary(grading, found, output)
    return 0 if grading.finished else STOPPED


def _settings(records: Records, output: Path, options: dict) -> tuple[dict, dict]:
    """The options with what the results folder remembers, and what it is to remember from now on."""
    before = records.run()
    options, kept, told = with_remembered(options, before.settings if before else {})
    if told:
        print(_printable(f"note: as before in {output}: {', '.join(told)} (the word none takes one away)"))
    return options, kept


def _extras(named, *, roster, deadline, late_days, late_cost, times, overrides, **rest) -> Extras:
    given = read_points(overrides, "overrides", "exercise", "reason", needs_reason=True) if overrides else {}
    return Extras(
        roster=read_roster(roster) if roster else [],
        deadline=read_deadline(deadline, late_days, late_cost) if deadline else None,
        times=read_times(times) if times else {},
        overrides=named(given),
    )


def _seed(records: Records, output: Path, given: int | None, *, again: bool) -> int:
    """The given seed, or that of the grading that goes on, or a new one.

    Raises:
        ValueError: if there is no grading to go on with, or if it was another version's or another seed's.
    """
    before = records.run()
    if not again:
        if before and not before.finished:
            print(f"note: {output} holds a grading that was not finished; --resume would have gone on with it")
        return drawn_seed() if given is None else checked_seed(given)
    if before is None:
        raise ValueError(f"output is {output}, which holds no grading to go on with; expected one, or no --resume")
    if before.version != __version__:
        raise ValueError(f"output is {output}, graded by grpo_lab {before.version}; this is {__version__}: grade anew")
    if given not in (None, before.seed):
        raise ValueError(f"seed is {given}; the grading that goes on has {before.seed}: leave the option out")
    return before.seed


def _graded(
    folder, chosen: int, records, hidden, people, *, jobs, time_limit, memory_limit, resume, only, assignment, **rest
) -> Grading:
    limits = Limits(time_limit, int(memory_limit * 2**30))
    with tqdm(desc="grading", unit="notebook", disable=None, file=sys.stderr) as bar:

        def progress(marked: int, of: int, student: str) -> None:
            bar.total, bar.n = of, marked
            bar.set_postfix_str(_printable(student)[:30])

        return grade(
            folder, chosen, jobs=jobs, limits=limits, hidden=hidden,
            records=records, resume=resume, only=only, roster=people, assignment=assignment,
            progress=progress,
        )  # fmt: skip


def _write_the_rest(
    grading: Grading, found: list[Result], extras: Extras, output: Path, rubric: dict, *, pseudonymous: bool
) -> None:
    """The page of the class, the tables for learning platforms, and the sheets for written answers.

    Behind pseudonyms nothing can be imported anywhere, and answers are read without names. Nothing is to be imported of
    a grading that was interrupted. Tables of an earlier one go then.
    """
    write_whole(output / "class.html", class_page(grading, found))
    write_sheets(grading, extras, output, rubric)
    title = ", ".join(grading.assignments)
    tables = {
        "moodle.csv": for_moodle(grading, found),
        "canvas.csv": for_canvas(grading, found, title),
        "gradescope.csv": for_gradescope_import(grading, found),
    }
    folder = output / "platforms"
    if grading.finished and not pseudonymous:
        folder.mkdir(exist_ok=True)
        for name, text in tables.items():
            write_whole(folder / name, text)
        return
    why = "names are hidden: --pseudonyms none shows them" if pseudonymous else "the grading is not finished"
    print(f"note: no tables for learning platforms, since {why}")
    for name in tables:
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _summary(grading: Grading, found: list[Result], output: Path) -> None:
    """What the shell says at the end."""
    for wall, why in grading.walls.items():
        if why:
            print(f"note: without the wall '{wall}': {why}")
    for student, before in grading.before.items():
        now = {m.exercise.name: m.points for g in grading.graded if g.submission.student == student for m in g.marks}
        changed = [f"{name} {was} -> {now.get(name, 0)}" for name, was in before.items() if now.get(name, 0) != was]
        told = ", ".join(changed) or "the same marks as before"
        print(f"{_printable(student)}: {told if before else f'no marks before, now {plain(sum(now.values()))} points'}")
    for one in to_discuss(mistakes(grading)):
        print(f"most points lost in {one.exercise.name}: {one.name} (students: {one.students}, points: {one.points:g})")
    for line in grading.doubts:
        print(f"warning: {_printable(line)}")
    for line in to_look_at(found):
        print(f"to look at: {_printable(line)}")
    print(f"{headline(found)}; {averaged(found, grading)}.")
    done = "Graded" if grading.finished else "Interrupted: go on with --resume"
    print(f"{done}, seed {grading.seed}: {output / 'grades.csv'}, class.html, and a page for each in students/")


def _printable(text: str) -> str:
    """What any terminal takes, and obeys as nothing but letters."""
    encoding = sys.stdout.encoding or "utf-8"
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain.encode(encoding, "replace").decode(encoding)
