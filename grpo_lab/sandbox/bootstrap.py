"""The code with which Python starts in the sandbox: it sets limits, then runs program.py, and tests.py if it exists.

The source of this module is passed to Python as text, so it must not import anything from this package.
"""

import os
import sys
import traceback
import types

MAX_ERROR_CHARACTERS = 500


def run(cpu_seconds: int, memory: int, file_size: int, open_files: int) -> None:
    """Set the limits and run program.py and tests.py as `__main__`.

    If there are tests, the first line of stdin is a token. It is written at the end of the output if the tests pass, so
    that a program cannot pass them by exiting early.

    Args:
        cpu_seconds: Limit of CPU time in seconds.
        memory: Limit of memory in bytes, in addition to what is already in use.
        file_size: Limit of the size of a file in bytes.
        open_files: Limit of the number of open files.
    """
    set_limits(cpu_seconds, memory, file_size, open_files)
    folder = sys.path.pop(0)
    sys.argv = ["program.py"]
    write = os.write  # the program may replace `os.write`
    files = [name for name in ("program.py", "tests.py") if os.path.exists(os.path.join(folder, name))]
    has_tests = "tests.py" in files
    token = sys.stdin.buffer.readline() if has_tests else b""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                exec(compile(file.read(), name, "exec"), module.__dict__)
        sys.stdout.flush()
    except SystemExit:
        if has_tests:
            os._exit(1)  # the program has exited before its tests, which counts as a failure
        raise
    except BaseException as error:
        _print_error(error, files[0])
        sys.exit(1)
    write(1, token)


def set_limits(cpu_seconds: int, memory: int, file_size: int, open_files: int) -> None:
    """Set the limits of this process, within those that it has. Windows has none, and macOS none of memory.

    The arguments are those of `run`.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    # At the first CPU limit the process gets a signal that it can ignore; at the second, a second later, it is killed.
    limits = {"CPU": (cpu_seconds, cpu_seconds + 1), "FSIZE": file_size, "NOFILE": open_files, "CORE": 0}
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:
            limits["AS"] = memory + int(file.read().split()[0]) * resource.getpagesize()
    for kind, value in limits.items():
        limit = getattr(resource, f"RLIMIT_{kind}")
        hard = resource.getrlimit(limit)[1]
        pair = value if isinstance(value, tuple) else (value, value)
        resource.setrlimit(limit, pair if hard == resource.RLIM_INFINITY else tuple(min(part, hard) for part in pair))


def _print_error(error: BaseException, program: str) -> None:
    """Print an exception to stderr in one line: the line number in the file `program`, the type and the message."""
    lines = traceback.format_exception_only(error)
    text = " ".join((lines[-1] if isinstance(error, SyntaxError) else lines[0]).split())
    locations: list = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        locations.append((error.filename, error.lineno))
    numbers = [number for name, number in locations if name == program and number]
    sys.stdout.flush()
    location = f"line {numbers[-1]}: " if numbers else ""
    print(location + text[:MAX_ERROR_CHARACTERS], file=sys.stderr, flush=True)
