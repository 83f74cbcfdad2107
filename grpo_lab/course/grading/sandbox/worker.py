"""In the walls: load everything, close the walls, run the cells one by one, run the functions, write what they did.

Nothing in this process is worth stealing: the bodies of the exercises are missing in the package that it imports, and
the expected values are computed elsewhere, afterwards. So whatever the student's code does here, it can only change
what it is itself marked for.
"""

import ast
import gc
import importlib
import json
import linecache
import os
import re
import signal
import sys
import time
import types
from pathlib import Path

from grpo_lab.course.grading.sandbox.jail import MAX_LOG

_MAGIC = re.compile(r"^(\s*)(?:%{1,2}|!|\?).*$|^(\s*)[\w.]+\?{1,2}\s*$")
MAX_PRINTED_ERROR = 2_000


def main(spec_path: str) -> None:
    """A process for one notebook. Never returns: it ends with exit code 0 when everything was tried."""
    spec = read_spec(spec_path)
    work(spec, *load(spec))


def read_spec(path: str) -> dict:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def load(spec: dict) -> tuple[dict, dict]:
    """Everything that a notebook needs, before any code of it runs: exercises, and what stands in for blank ones."""
    from grpo_lab.course.grading.sandbox import walls  # noqa: F401
    from grpo_lab.course.guard import snapshot

    sys.path[:] = [p for p in sys.path if _readable(p, spec["readable"], spec["hidden"])]
    exercises = load_exercises(spec["exercises"], spec["libraries"])
    stand_ins = {name: e.function for name, e in load_exercises(spec["blank"], []).items()}
    silence_the_course()
    snapshot()  # the guard remembers what is there, and so does every fork of this process
    return exercises, stand_ins


def work(spec: dict, exercises: dict, stand_ins: dict) -> None:
    """Close the walls, run the cells and then the exercises that are asked for. Never returns."""
    from grpo_lab.course.grading.sandbox import walls
    from grpo_lab.course.guard import forget, snapshot

    gc.collect()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the teacher's Ctrl-C; a cell's own interrupts end the cell only
    report = Report(Path(spec["folder"]) / "out")
    standing = walls.close(spec["folder"], spec["readable"], spec["hidden"], spec["memory"], spec["walls"])
    if fallen := [name for name, why in standing.items() if why and not spec["walls"][name]]:
        raise RuntimeError(f"the wall '{fallen[0]}' stood when it was tried, and not now: {standing[fallen[0]]}")
    put_back = snapshot(*(part for e in exercises.values() for part in (e, *e.cases, *e.misconceptions)))
    namespace = run_cells(spec["cells"], report)
    put_back()  # of torch and of this package, whatever a cell has replaced: how a function is tried is none of theirs
    forget()  # the next to be replaced are the library's functions, by the notebook's
    namespace.update(stand_ins)
    run_exercises({name: exercises[name] for name in spec["exercises"]}, namespace, spec, report)
    report.say({"at": "done"})
    os._exit(0)  # threads that a cell has left behind do not keep the process


class Report:
    """What the parent reads: one file for what is going on, one for each result."""

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self.folder = folder

    def say(self, entry: dict) -> None:
        while os.fstat(2).st_size > MAX_LOG:  # the parent ends this process, at the step that did it
            time.sleep(0.1)
        with open(self.folder / "progress", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def write(self, name: str, content) -> None:
        unfinished = self.folder / f"{name}.unfinished"
        unfinished.write_text(json.dumps(content), encoding="utf-8")
        os.replace(unfinished, self.folder / f"{name}.json")


def _readable(path: str, readable: list[str], hidden: list[str]) -> bool:
    inside, outside = (
        max((len(f) for f in some if Path(path).is_relative_to(f)), default=0) for some in (readable, hidden)
    )
    return inside > outside


def load_exercises(names: list[str], libraries: list[str]) -> dict:
    """The exercises, and all that their cases and the students' usual imports need: nothing is loaded late."""
    import torch

    from grpo_lab.course.checking import outcome_file  # noqa: F401
    from grpo_lab.course.exercises import exercise

    torch.set_num_threads(1)
    leaf = torch.ones(2, requires_grad=True)
    (leaf * 2).sum().backward()
    for library in libraries:
        importlib.import_module(library)
    return {name: exercise(name) for name in names}


def silence_the_course() -> None:
    """A `check(...)` in a cell has nothing to compare with here; it says nothing, and costs nothing.

    What takes the library's own answer away during a check has nothing to do either: that is gone for good here.
    """
    import grpo_lab.course as course
    import grpo_lab.notebook as notebook
    from grpo_lab.course.checking import run_case

    for module, names in ((course, ("check", "hint", "progress")), (notebook, ("begin",))):
        for name in names:
            setattr(module, name, _quiet)
    run_case.Withheld = _NothingToWithhold


class _NothingToWithhold:
    def __init__(self, exercise): ...

    take = give_back = lambda self: None


def _quiet(*args, **kwargs) -> None:
    return None


def run_cells(cells: list[dict], report: Report) -> dict:
    """Each cell by itself: one that fails loses only itself. Returns the names that they defined."""
    namespace = {"__name__": "__main__", "__builtins__": __builtins__}
    failed, own = {}, {}
    for cell in cells:
        report.say({"at": "cell", "cell": cell["number"]})
        try:
            run_cell(cell["source"], f"<cell {cell['number']}>", namespace)
        except BaseException as error:
            failed[str(cell["number"])] = describe(error)
        own |= {name: value for name, value in namespace.items() if not _is_library(value)}
    report.write("cells", failed)
    # Importing from the library what one has written oneself is natural, and takes nothing back.
    namespace.update({name: own[name] for name, value in namespace.items() if _is_library(value) and name in own})
    return namespace


def _is_library(value) -> bool:
    """A function of this package, whose body may be gone here. (`isinstance` would ask a student's object.)"""
    module = value.__module__ if type(value) is types.FunctionType else None
    return type(module) is str and module.startswith("grpo_lab")


def run_cell(source: str, name: str, namespace: dict) -> None:
    code = runnable(source)
    if code is None:
        return
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    exec(compile(code, name, "exec"), namespace)


def runnable(source: str) -> str | None:
    """The cell without what only Jupyter understands (`%magic`, `!command`, `name?`); None for another language.

    A cell with a mistake of syntax comes back as it is: running it says what is wrong.
    """
    lines = source.splitlines()
    if lines and lines[0].startswith("%%"):
        if not re.match(r"%%(time|timeit|capture)\b", lines[0]):
            return None
        source = "\n".join(["", *lines[1:]])
    try:
        ast.parse(source)
        return source
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "\n".join(_MAGIC.sub(lambda m: f"{m[1] or m[2] or ''}pass", line) for line in source.splitlines())


def run_exercises(exercises: dict, namespace: dict, spec: dict, report: Report) -> None:
    """Each function that is asked for, in turn, while the notebook's functions stand in for each other.

    Whom a function calls is reported too: its neighbours by their names, and those that the library calls for it.
    """
    from grpo_lab.course.checking.signature import signature_fault
    from grpo_lab.course.checking.stand_ins import called, using

    written = {name: namespace[name] for name in exercises if callable(namespace.get(name))}
    fitting = {name: function for name, function in written.items() if not signature_fault(function, exercises[name])}
    with using(**fitting) as used:
        for name in spec["asked"]:
            report.say({"at": "exercise", "exercise": name})
            if name not in written:
                report.write(f"{name}.missing", "the notebook defines no function of this name")
                continue
            before = dict(used.calls)
            try:
                calls = called(written[name], exercises) if type(written[name]) is types.FunctionType else set()
                report.write(f"{name}.calls", sorted(calls))  # now, as what follows may end the process
                run_exercise(written[name], exercises[name], spec, report)
                calls |= {other for other, count in used.calls.items() if count > before[other]}
                report.write(f"{name}.calls", sorted(calls))
            except BaseException as error:
                report.write(f"{name}.broken", describe(error))


def run_exercise(function, exercise, spec: dict, report: Report) -> None:
    from grpo_lab.course.checking.outcome_file import save_outcomes
    from grpo_lab.course.checking.run_case import run_student

    for seed in spec["seeds"]:
        outcomes = run_student(function, exercise, seed, spec["case_seconds"])
        save_outcomes(report.folder / f"{exercise.name}.{seed}.safetensors", outcomes)


def describe(error: BaseException) -> dict:
    """Type, text and line; the last frame that lies in a cell."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<cell"):
            line = f"{trace.tb_frame.f_code.co_filename[1:-1]}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        line = f"{str(error.filename)[1:-1]}, line {error.lineno}"
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)[:MAX_PRINTED_ERROR]
    except BaseException:
        text = ""
    return {"type": type(error).__name__, "text": text, "where": line or ""}
