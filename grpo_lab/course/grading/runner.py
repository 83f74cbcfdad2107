"""In the sandbox: load everything, run the cells one by one, try the functions, and send what they did.

Nothing in this process is worth stealing: the bodies of the exercises are missing in the package that it imports, and
the expected values are computed elsewhere, afterwards. So whatever the student's code does here, it can only change
what it is itself marked for. The library's version of an exercise comes in once the student's own has been tried:
those behind it run with it, so that a mistake is paid for once.
"""

import ast
import gc
import inspect
import json
import linecache
import os
import re
import signal
import sys
import types
from pathlib import Path

from grpo_lab.course.exercise import Exercise

_MAGIC = re.compile(r"^(\s*)(?:%{1,2}|!|\?).*$|^(\s*)[\w.]+\?{1,2}\s*$")
MAX_PRINTED_ERROR = 2_000
MISSING = "The notebook defines no function of this name."
MAX_FILE, MAX_OPEN = 16_000_000, 64  # what is deleted and kept open takes room that nobody sees: few files, and small


def main() -> None:
    """Run one notebook. Never returns: it ends with exit code 0 when everything was tried."""
    channel = Channel()
    request = channel.hear()
    limit(CPU=request["cpu_seconds"], FSIZE=MAX_FILE, CORE=0, NOFILE=MAX_OPEN)
    exercises = load_exercises(request["exercises"])
    silence_the_course()
    gc.collect()
    limit_memory(request["memory"])
    if hasattr(signal, "SIGINT"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the teacher's Ctrl-C; a cell's own interrupts end the cell
    undo = remember_modules()
    namespace = run_cells(request["cells"], channel)
    undo()  # so that nothing a cell has replaced in a module changes how a function is tried
    lend(request["lent"], exercises, namespace)
    for name in request["untried"]:
        channel.say({"exercise": name})
        try_exercise(exercises[name], namespace.get(name), request, channel)
        lend(channel.hear()["lent"], exercises, namespace)
    channel.say({"done": ""})
    os._exit(0)  # threads that a cell has left behind do not keep the process


class Channel:
    """The channel to the parent: standard input and output, which are taken away from everybody else."""

    def __init__(self):
        self._out, self._in = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0), os.dup2(nothing, 1)

    def say(self, message: dict, content: bytes = b"") -> None:
        self._out.write(json.dumps(message | {"bytes": len(content)}).encode() + b"\n" + content)
        self._out.flush()

    def hear(self) -> dict:
        return json.loads(self._in.readline())


def limit(**limits: int) -> None:
    """Set limits of this process, where the system has any."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind, value in limits.items():
        _, hard = resource.getrlimit(resource_id := getattr(resource, f"RLIMIT_{kind}"))
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_id, (value, value))


def limit_memory(extra: int) -> None:
    """Limit the memory to so many bytes more than now. Only Linux says how many that are."""
    if sys.platform == "linux":
        import resource

        limit(AS=extra + int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize())


def load_exercises(names: list[str]) -> dict[str, Exercise]:
    """The exercises, and all that their cases and the students' usual imports need."""
    import einops  # noqa: F401
    import numpy  # noqa: F401
    import torch

    from grpo_lab.course.checking import outcome_bytes, run_case  # noqa: F401
    from grpo_lab.course.exercises import find_exercise

    torch.set_num_threads(1)
    return {name: find_exercise(name) for name in names}


def silence_the_course() -> None:
    """Make `check(...)` in a cell say nothing and cost nothing: it has nothing to compare with here."""
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


def remember_modules():
    """Save the names of torch and of this package as they are; returns a function that puts them back."""
    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in ("torch", "grpo_lab")]
    saved = [(vars(module), dict(vars(module))) for module in modules if type(module) is types.ModuleType]

    def undo() -> None:
        for namespace, attributes in saved:
            namespace.update(attributes)

    return undo


def lend(sources: dict[str, str], exercises: dict[str, Exercise], namespace: dict) -> None:
    """Give these functions of the library their bodies, and put them in the place of the notebook's own."""
    for name, source in sources.items():
        function = inspect.unwrap(exercises[name].function)
        defined: dict = {}
        exec(source, function.__globals__, defined)
        function.__code__ = defined[name].__code__
        namespace[name] = exercises[name].function


def try_exercise(exercise: Exercise, function, request: dict, channel: Channel) -> None:
    from grpo_lab.course.checking.outcome_bytes import to_bytes
    from grpo_lab.course.checking.run_case import run_student

    if not callable(function):
        channel.say({"fault": MISSING})
        return
    try:
        for seed in request["seeds"]:
            outcomes = run_student(function, exercise, seed, request["case_seconds"])
            channel.say({"seed": seed}, to_bytes(outcomes))
    except BaseException as error:
        channel.say({"fault": f"The check could not run it: {describe(error)}"})


def run_cells(cells: list[dict], channel: Channel) -> dict:
    """Run each cell by itself: one that fails loses only itself. Returns the names that they defined."""
    namespace = {"__name__": "__main__", "__builtins__": __builtins__}
    failed, own = {}, {}
    for cell in cells:
        channel.say({"cell": cell["number"]})
        try:
            run_cell(cell["source"], f"<cell {cell['number']}>", namespace)
        except BaseException as error:
            failed[str(cell["number"])] = describe(error)
        own |= {name: value for name, value in namespace.items() if not _is_library(value)}
    channel.say({"failed": failed})
    # Importing from the library what one has written oneself is natural, and takes nothing back.
    namespace.update({name: own[name] for name, value in namespace.items() if _is_library(value) and name in own})
    return namespace


def _is_library(value) -> bool:
    """Recognise a function of this package, whose body may be gone. (`isinstance` would ask a student's object.)"""
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


def describe(error: BaseException) -> str:
    """Describe an error: type, text and line of the last frame that lies in a cell."""
    position, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<cell"):
            position = f" ({trace.tb_frame.f_code.co_filename[1:-1]}, line {trace.tb_lineno})"
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        position = f" ({str(error.filename)[1:-1]}, line {error.lineno})"
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)[:MAX_PRINTED_ERROR]
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}{position}"
