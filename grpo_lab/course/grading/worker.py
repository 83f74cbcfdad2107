"""The worker, a process in the sandbox: run the cells of a notebook, try its functions, and send the outcomes back.

This process holds no secrets. The package that it imports lacks the bodies of the exercises, and the grading
computes the expected values afterwards, in its own process. So the student's code can change only its own outcomes.

Before an exercise is tried, the library's versions of the earlier ones replace the student's. The exercise calls these,
so a mistake costs points only once.
"""

import gc
import inspect
import json
import linecache
import os
import signal
import sys
import types

from grpo_lab.base.user_code import python_of_cell
from grpo_lab.course.checking.cell_history import is_from_library
from grpo_lab.course.exercise import Exercise, function_from_source
from grpo_lab.course.grading.messages import (
    UNDEFINED,
    Cell,
    FailedCells,
    NoOutcomes,
    Request,
    SeedOutcomes,
    StepStarted,
    WorkerMessage,
    write_worker_message,
)
from grpo_lab.sandbox.bootstrap import set_limits
from grpo_lab.sandbox.python import MAX_FILE_BYTES, MAX_OPEN_FILES

MAX_ERROR_LENGTH = 2_000  # characters of the text of an error


def main() -> None:
    """Run one notebook, and end the process with exit code 0 after all exercises. This function does not return."""
    channel = Channel()
    request = Request.from_line(channel.receive_line())
    exercises = load_exercises(request.exercises)
    disable_checks()
    gc.collect()
    set_limits(request.cpu_seconds, request.memory_bytes, MAX_FILE_BYTES, MAX_OPEN_FILES)
    if hasattr(signal, "SIGINT"):
        # The teacher's Ctrl-C is handled by the grading. A KeyboardInterrupt that a cell raises still ends the cell.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    restore_modules = save_modules()
    namespace = run_cells(request.cells, channel)
    restore_modules()  # a cell that replaces functions of a module must not change how exercises are tried
    for step, name in enumerate(request.untried, len(request.cells)):
        channel.send(StepStarted(step))
        restore_library(json.loads(channel.receive_line()), exercises, namespace)
        try_exercise(exercises[name], namespace.get(name), request, channel)
    channel.send(StepStarted(len(request.cells) + len(request.untried)))
    os._exit(0)  # ends the process even if a cell has started threads that are still running


class Channel:
    """The connection to the grading over standard input and output.

    Both are then redirected to the null device, so that the student's code can neither read nor write messages.
    """

    def __init__(self):
        self._out, self._in = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
        null_device = os.open(os.devnull, os.O_RDWR)
        os.dup2(null_device, 0)
        os.dup2(null_device, 1)

    def send(self, message: WorkerMessage) -> None:
        write_worker_message(self._out, message)

    def receive_line(self) -> bytes:
        return self._in.readline()


def load_exercises(names: list[str]) -> dict[str, Exercise]:
    """Return the exercises of these names, and import the modules that notebooks usually need."""
    import einops  # noqa: F401
    import numpy  # noqa: F401
    import torch

    from grpo_lab.course.checking import run_cases  # noqa: F401
    from grpo_lab.course.exercises import find_exercise

    torch.set_num_threads(1)
    return {name: find_exercise(name) for name in names}


def disable_checks() -> None:
    """Make functions such as `check` do nothing, because the references that they need are missing here."""
    import grpo_lab.course as course
    import grpo_lab.course.variant as variant
    import grpo_lab.teaching.notebook as notebook

    for module, names in (
        (course, ("check", "hint", "progress")),
        (variant, ("class_variant",)),
        (notebook, ("begin",)),
    ):
        for name in names:
            setattr(module, name, lambda *args, **kwargs: None)


def save_modules():
    """Save the attributes of all modules of torch and grpo_lab, and return a function that restores them."""
    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in ("torch", "grpo_lab")]
    saved = [(vars(module), dict(vars(module))) for module in modules if type(module) is types.ModuleType]

    def restore() -> None:
        for namespace, attributes in saved:
            namespace.update(attributes)

    return restore


def restore_library(sources: dict[str, str], exercises: dict[str, Exercise], namespace: dict) -> None:
    """Restore the bodies of library functions, and put the functions into the notebook's namespace.

    Args:
        sources: The sources of the functions by name.
        exercises: All exercises by name.
        namespace: The notebook's namespace, in which the functions replace the student's.
    """
    for name, source in sources.items():
        function = inspect.unwrap(exercises[name].function)
        function.__code__ = function_from_source(function, source).__code__
        namespace[name] = exercises[name].function


def try_exercise(exercise: Exercise, function: object, request: Request, channel: Channel) -> None:
    """Run a function on the inputs of each seed, and send the outcomes, or a sentence that explains their absence."""
    from grpo_lab.course.checking.outcome import to_bytes
    from grpo_lab.course.checking.run_cases import run_student

    if not callable(function):
        channel.send(NoOutcomes(UNDEFINED))
        return
    try:
        for seed in request.seeds:
            outcomes = run_student(function, exercise, seed, request.case_seconds)
            channel.send(SeedOutcomes(seed, to_bytes(outcomes)))
    except BaseException as error:
        channel.send(NoOutcomes(f"The check could not run it: {error_in_words(error)}"))


def run_cells(cells: list[Cell], channel: Channel) -> dict:
    """Run all cells, and return the namespace that they share. A cell that fails does not stop the others.

    The numbers of the failed cells, with the reasons, are sent to the grading.
    """
    namespace = {"__name__": "__main__", "__builtins__": __builtins__}
    reasons: dict[int, str] = {}
    defined_by_student: dict[str, object] = {}
    for step, cell in enumerate(cells):
        channel.send(StepStarted(step))
        try:
            run_cell(cell, namespace)
        except BaseException as error:
            reasons[cell.number] = error_in_words(error)
        defined_by_student |= {name: value for name, value in namespace.items() if not is_from_library(value)}
    channel.send(FailedCells(reasons))
    # A later cell may import the library's function under the name of the student's. The student's still counts.
    for name, value in namespace.items():
        if is_from_library(value) and name in defined_by_student:
            namespace[name] = defined_by_student[name]
    return namespace


def run_cell(cell: Cell, namespace: dict) -> None:
    """Run a cell in a namespace. Tracebacks show its lines as those of a file "<cell 4>"."""
    code = python_of_cell(cell.source)
    if code is None:
        return
    file = f"<cell {cell.number}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    exec(compile(code, file, "exec"), namespace)


def error_in_words(error: BaseException) -> str:
    """Describe an error by its type, its text, and the innermost line of a cell on the way to it."""
    position, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<cell"):
            position = f" ({trace.tb_frame.f_code.co_filename[1:-1]}, line {trace.tb_lineno})"
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        position = f" ({str(error.filename)[1:-1]}, line {error.lineno})"
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)[:MAX_ERROR_LENGTH]
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}{position}"
