"""Programs in the sandbox: their output is returned, other effects are prevented; without a sandbox none runs."""

import functools
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from grpo_lab.base.checks import InputError, RunError
from grpo_lab.sandbox import python
from grpo_lab.sandbox.python import Execution, check_sandbox, execute, run_python
from tests.support.bubblewrap import needs_bubblewrap


@needs_bubblewrap
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(6 * 7)", "42"),
        ("", "It printed nothing: use print."),
        ("print(1)\n1 / 0", "1\nline 2: ZeroDivisionError: division by zero"),
        ("def f(n):\n    return n / 0\n\n\nf(1)", "line 2: ZeroDivisionError: division by zero"),
        ("print(1)\ndef f(:", "line 2: SyntaxError: invalid syntax"),
        ("raise ValueError('a\\nb')", "line 1: ValueError: a b"),
        ("os.getcwd()", "line 1: NameError: name 'os' is not defined. Did you forget to import 'os'?"),
        ("input()", "line 1: EOFError: EOF when reading a line"),
        ("assert 1 == 2", "line 1: AssertionError"),
    ],
)
def test_run_python_returns_output_and_errors_in_one_line(code, expected):
    output = run_python(code)
    assert output == expected or ("NameError" in expected and output in expected)  # Python 3.11 suggests no other name


@needs_bubblewrap
def test_usual_python_runs_in_the_sandbox():
    code = """
import dataclasses, json, multiprocessing.pool, pathlib, pickle, random, re, tempfile

@dataclasses.dataclass
class Point:
    x: int

print(pickle.loads(pickle.dumps(Point(3))))
pathlib.Path("a.txt").write_text("kept")
print(pathlib.Path("a.txt").read_text(), json.dumps({"a": [1]}), re.findall("[0-9]", "a1b2"))
with multiprocessing.pool.ThreadPool(4) as pool:
    print(pool.map(abs, [-1, 2]))
import numpy
print(numpy.arange(3) @ numpy.eye(3)[0], __name__)
"""
    assert run_python(code).splitlines() == ["Point(x=3)", "kept {\"a\": [1]} ['1', '2']", "[1, 2]", "0.0 __main__"]


@needs_bubblewrap
def test_run_python_output_is_reproducible():
    code = "print({'a', 'b', 'c', 'd'}, hash('x'))"
    assert run_python(code) == run_python(code)


@needs_bubblewrap
@pytest.mark.parametrize(
    ("code", "beginning"),
    [
        ("raise SystemExit(3)", "It ended with exit code 3."),
        ("import os; os._exit(255)", "It ended with exit code 255."),
        ("import os; os.kill(os.getpid(), 9)", "It ended with exit code 137."),
        ("import ctypes; ctypes.string_at(0)", "It ended with exit code 139."),
        ("import sys; sys.exit('bye')", "bye"),
        (
            "import os, sys; print(1, flush=True); os.close(1); os.close(2); sys.exit(2)",
            "1\nIt ended with exit code 2.",
        ),
        (r"import sys; sys.stdout.buffer.write(b'\xff\xfe ok')", "\ufffd\ufffd ok"),
        (r"print('\ud800')", "line 1: UnicodeEncodeError"),
        ("print('\ud800')", "?"),
        ("x = '\0'", "line 1: SyntaxError: source code string cannot contain null bytes"),
        ("raise KeyboardInterrupt", "line 1: KeyboardInterrupt"),
        ("def f(): f()\nf()", "line 1: RecursionError: maximum recursion depth exceeded"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "line 3: E: <exception str() failed>"),
    ],
)
def test_run_python_reports_odd_endings(code, beginning):
    assert run_python(code).startswith(beginning) or "null bytes" in run_python(code)


@needs_bubblewrap
def test_run_python_cuts_long_output():
    beginning = "x" * python.MAX_SHOWN_CHARACTERS
    assert run_python("print('x' * 900_000)") == f"{beginning} ... [cut: the first 2,000 of 900,000 characters]"
    output = run_python("while True: print('x' * 10_000)")
    assert output.startswith("x")
    assert output.endswith("more characters]\nStopped: it printed more than 1,000,000 bytes.")
    assert len(run_python("raise ValueError('x' * 900_000)")) < 600


@needs_bubblewrap
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass",
        "import os\nos.close(1); os.close(2)\nwhile True: pass",
        "import os\nif os.fork(): os._exit(0) if not print(end='') else 0\nwhile True: pass",
    ],
    ids=["loops", "ignores the signal", "sleeps", "closes its output", "leaves a child"],
)
def test_execute_ends_endless_programs(code, monkeypatch):
    # A program that sleeps reaches the wall-clock limit; the others reach that of CPU time, even on a busy machine.
    monkeypatch.setattr(python, "CLOCK_FACTOR", 1.0 if "sleep" in code else 100.0)
    execution = execute(code, seconds=1.0)
    if "fork" in code:  # the end of its first process ends all others
        assert execution == Execution("", "", 0, "")
    else:
        used = "it took longer than 1 seconds" if "sleep" in code else "it used more than 1 seconds of CPU time"
        assert execution.stop_reason == used
    assert not running()


def running() -> list[str]:
    """Return the programs of this process that are still running."""
    own = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    return [line for line in own.splitlines() if "bwrap" in line and "defunct" not in line]


@needs_bubblewrap
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os\nwhile True: os.fork()", "started more than 50 processes"),
        (
            "import threading, time\nfor _ in range(60): threading.Thread(target=time.sleep, args=(99,)).start()",
            "started more than 50 processes or threads",
        ),
        ("b = []\nwhile True: b.append(bytes(10**8))", "MemoryError"),
        ("open('a', 'wb').write(bytes(10**8))", "File too large"),
        ("for n in range(99): open(f'{n}', 'wb').write(bytes(15_000_000))", "No space left on device"),
        ("files = [open(f'{n}', 'w') for n in range(99)]", "Too many open files"),
    ],
    ids=["forks", "threads", "memory", "a file", "many files", "open files"],
)
def test_run_python_refuses_too_much_memory_files_and_processes(code, problem):
    assert problem in run_python(code)
    assert not running()


@needs_bubblewrap
def test_memory_is_counted_over_all_processes(monkeypatch):
    monkeypatch.setattr(python, "MAX_TOTAL_MEMORY", 2**28)
    code = "import os, time\nfor _ in range(4):\n    if not os.fork():\n        kept = b'x' * 10**8\n        break\n"
    assert execute(code + "time.sleep(99)").stop_reason == "it used more than 0 GiB of memory"


@needs_bubblewrap
def test_sandboxed_program_cannot_read_or_change_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET", "a password")
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0)
        folders = [Path.home(), tmp_path, Path(python.__file__).parent]
        code = f"""
import glob, os, socket
found = []
def attempt(name, call):
    try:
        if result := call():
            found.append((name, result))
    except OSError:
        pass
attempt("package", lambda: open({python.__file__!r}).read(9))
attempt("secret", lambda: open({str(tmp_path / "secret")!r}).read())
attempt("users", lambda: open("/etc/passwd").read(9))
attempt("home", lambda: [n for n in os.listdir({str(Path.home())!r}) if n in (".bashrc", ".ssh", ".netrc", ".cache")])
attempt("environment", lambda: os.environ.get("A_SECRET"))
attempt("of others", lambda: [p for p in glob.glob("/proc/[0-9]*/environ") if b"A_SECRET" in open(p, "rb").read()])
attempt("parent", lambda: os.kill({os.getpid()}, 0) is None)
attempt("socket", lambda: socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 1))
attempt("network", lambda: socket.create_connection(("192.0.2.1", 80), 1))
attempt("name", lambda: socket.getaddrinfo("example.org", 80))
for folder in ("/", "/usr", "/package", "/dev", {str(tmp_path)!r}, {str(Path.home())!r}):
    attempt("write " + folder, lambda: open(os.path.join(folder, "x"), "w"))
attempt("become root", lambda: os.setuid(0) is None)
attempt("program", lambda: open("/package/stdin").read())
print(found)
"""
        assert run_python(code) == "[]"
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not any((path / "x").exists() for path in folders)


@needs_bubblewrap
def test_sandboxed_program_cannot_kill_other_processes():
    code = "import os, signal\nfor pid in (os.getppid(), 1, -1):\n    for number in (9, 15):\n        try:\n"
    code += "            os.kill(pid, number)\n        except OSError as error: print(error)\nprint('done')"
    survivor = subprocess.Popen(["sleep", "60"])
    try:
        output = run_python(code)
        assert output.endswith("done") or "exit code" in output
        assert survivor.poll() is None
    finally:
        survivor.kill()
        survivor.wait()


@needs_bubblewrap
def test_execute_passes_stdin():
    assert execute("print(int(input()) + int(input()))", "3\n4\n").output == "7\n"
    assert execute("import sys\nprint(len(sys.stdin.read()))", "x" * 300_000).output == "300000\n"
    assert execute("pass", "x" * 300_000).succeeded, "nobody has to read"
    assert execute("import os\nos.write(0, b'x')", "x").exit_code == 1


@needs_bubblewrap
def test_execute_runs_tests_with_the_names_of_the_program():
    code = "def double(n):\n    return 2 * n\n"
    assert execute(code, tests="assert double(2) == 4").succeeded
    assert execute(code + "print('hi')", tests="assert double(2) == 4").output == "hi\n"
    wrong = execute(code, tests="assert double(2) == 5")
    assert (wrong.succeeded, wrong.error) == (False, "AssertionError")
    assert execute(code, tests="assert triple(2) == 5").error.startswith("NameError")


@needs_bubblewrap
@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit()", "import os; os._exit(0)", "raise SystemExit(0)", "quit()", "1 / 0", "def f(:",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit, os; atexit.register(lambda: os._exit(0)); raise SystemExit",
        "import sys; print(sys.stdin.read()); sys.exit(0)",
        "import os; os.close(1); os._exit(0)",
    ],
)  # fmt: skip
def test_execute_fails_a_program_that_exits_before_its_tests(code):
    assert not execute(code, tests="assert True").succeeded


@needs_bubblewrap
def test_execute_runs_several_programs_at_a_time():
    results: list = [None] * 6
    threads = [
        threading.Thread(target=lambda n=n: results.__setitem__(n, execute(f"print({n})").output)) for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [f"{n}\n" for n in range(6)]


@needs_bubblewrap
def test_execute_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(python.tempfile, "tempdir", str(tmp_path))
    execute("import os\nos.mkdir('a')\nopen('a/b', 'w').write('x')")
    assert not list(tmp_path.iterdir())


# Without a sandbox.


@pytest.fixture
def no_sandbox(monkeypatch):
    monkeypatch.setattr(python, "machine_sandbox", lambda: ("", "bubblewrap: cannot be started (FileNotFoundError)"))
    monkeypatch.setattr(python.subprocess, "Popen", lambda *args, **settings: pytest.fail("it was run"))


def test_execute_is_refused_without_a_sandbox(no_sandbox):
    with pytest.raises(RunError, match=r"sandbox is missing: .*FileNotFoundError.* Install bubblewrap \(Linux: apt"):
        execute("print(1)")
    with pytest.raises(RunError, match="Install bubblewrap"):
        run_python("print(1)")
    for function in (run_python, functools.partial(run_python)):
        with pytest.raises(RunError, match="tools has 'run_python'; what a model writes is run in a sandbox only"):
            check_sandbox("tools", function)
    check_sandbox("tools", print)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_execute_refuses_limits_that_are_not_positive(seconds):
    with pytest.raises(InputError, match="it must be positive"):
        execute("", seconds=seconds)
