"""What Python runs first behind the walls: limits are set, then comes program.py, and the tests beside it, if any.

Its source is given to Python as a text, so it imports nothing of this package.
"""

import os
import sys
import traceback
import types

LONGEST_ERROR = 500  # characters


def run(cpu_seconds: int, memory: int, file_size: int, open_files: int) -> None:
    """Run the files as `__main__`. The first line of stdin is repeated at the end of the output, if all went well."""
    _limit(cpu_seconds, memory, file_size, open_files)
    folder, sys.argv, repeat = sys.path.pop(0), ["program.py"], os.write
    files = [name for name in ("program.py", "tests.py") if os.path.exists(os.path.join(folder, name))]
    token = sys.stdin.buffer.readline() if len(files) > 1 else b""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                exec(compile(file.read(), name, "exec"), module.__dict__)
        sys.stdout.flush()
    except SystemExit:
        if len(files) > 1:
            os._exit(1)  # before the tests have been run: no way to pass them
        raise
    except BaseException as error:
        _say(error, files)
        sys.exit(1)
    repeat(1, token)


def _limit(cpu_seconds: int, memory: int, file_size: int, open_files: int) -> None:
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        memory += int(file.read().split()[0]) * resource.getpagesize()
    # A second after the limit of time comes a signal that cannot be ignored.
    limits = {"CPU": (cpu_seconds, cpu_seconds + 1), "AS": memory, "FSIZE": file_size, "NOFILE": open_files, "CORE": 0}
    for kind, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), value if isinstance(value, tuple) else (value, value))


def _say(error: BaseException, files: list[str]) -> None:
    """Write an exception in one line: the line of the program that raised it, its type and its text."""
    lines = traceback.format_exception_only(error)
    text = " ".join((lines[-1] if isinstance(error, SyntaxError) else lines[0]).split())
    locations: list = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        locations.append((error.filename, error.lineno))
    numbers = [number for name, number in locations if name == files[0] and number]
    sys.stdout.flush()
    location = f"line {numbers[-1]}: " if numbers else ""
    print(location + text[:LONGEST_ERROR], file=sys.stderr, flush=True)
