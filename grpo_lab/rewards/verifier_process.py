"""Math-Verify and the verifiers of reasoning-gym, in a child process that can be stopped after a time limit.

Math-Verify's own time limit uses SIGALRM, which does not exist on Windows and works only on the main thread. Here the
child process is ended by the watchdog of faulthandler, a thread in C, which works even during one huge integer power.
The child also ends when its input ends, and so when the parent process dies. It loads each library when a function
needs it for the first time, so that one can be used without the other.

This file is both sides: the parent imports it, and the child runs it as a script. So that the child starts quickly, the
file imports neither the package nor torch at its top.
"""

import atexit
import contextlib
import faulthandler
import functools
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

MAX_MEMORY_BYTES = 4 * 2**30  # bytes of address space of the child process
READY = "ready"  # reply of the child process when the library of a function is loaded


# For each function of the child process: the library that it needs, the reward that calls it (for messages), and the
# extra of this package that installs the library.
LIBRARIES = {"compare": ("Math-Verify", "math_reward", "math"), "score": ("reasoning-gym", "gym_reward", "gym")}


class VerifierProcess:
    """The child process, which is started for the first batch, and again after a timeout or crash.

    It computes one batch at a time.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self._ready_functions: set[str] = set()  # functions whose library the process has loaded
        self._lock = threading.Lock()

    def run_batch(
        self, function: str, argument_tuples: Sequence[tuple], time_limit: float, batch_time_limit: float
    ) -> dict:
        """Call a function of the child process with each tuple of arguments.

        Args:
            function: The name of the function, "compare" or "score".
            argument_tuples: The arguments of each call.
            time_limit: The seconds that one call may take.
            batch_time_limit: The seconds that all calls may take together, counted from when the child is ready and no
                other batch is running.

        Returns:
            For each tuple of arguments the result, or None if the time ran out or the child process ended.

        Raises:
            InputPackageError: If the library that the function needs cannot be loaded.
        """
        results = {}
        with self._lock:
            deadline = None
            for arguments in argument_tuples:
                self._start(function)
                deadline = deadline or time.monotonic() + batch_time_limit
                limit = min(time_limit, deadline - time.monotonic())
                line = json.dumps([function, arguments, limit]) + "\n"
                results[arguments] = self._exchange(line) if limit > 0 else None
        return results

    def _exchange(self, line: str) -> Any:
        """Send a line to the child and return its reply; if the child has ended, clean up and return None."""
        reply, process = "", self.process
        assert process is not None and process.stdin is not None and process.stdout is not None  # `_start` ran
        try:
            with contextlib.suppress(OSError):
                process.stdin.write(line)
                process.stdin.flush()
                reply = process.stdout.readline()
        finally:
            # Also after an interrupt: otherwise the late reply would be read as the reply to the next line.
            if not reply:
                self.end()
        return json.loads(reply) if reply else None

    def _start(self, function: str) -> None:
        """Start the process unless it is running, and let it load the library that the function needs."""
        if self.process is None or self.process.poll() is not None:
            self._start_process()
        if function in self._ready_functions:
            return
        line = json.dumps(["load_library", [function], None]) + "\n"
        if (status := self._exchange(line) or "it ended at once") != READY:
            self.end()
            from grpo_lab.base.checks import InputPackageError  # imported here: only the parent may import the package

            library, reward, extra = LIBRARIES[function]
            needs = f"needs {library}, which did not start ({status})"
            remedy = f'install it with: pip install "grpo-lab[{extra}]"'
            raise InputPackageError(reward, None, remedy, problem=needs)
        self._ready_functions.add(function)

    def _start_process(self) -> None:
        """Start a process, which has loaded no library yet, in place of the last one."""
        self.end()
        self._ready_functions = set()
        # Ctrl-C in a terminal must reach only the parent. -P: modules in this file's folder must not hide others.
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0), start_new_session=True,
        )  # fmt: skip

    def end(self) -> None:
        """End the process if there is one; the next batch starts another."""
        process, self.process = self.process, None
        if process is not None:
            # Closing a broken pipe may raise OSError, if a line is still in its buffer.
            with contextlib.suppress(OSError), process:
                process.kill()

    def detach_after_fork(self) -> None:
        """Reset the object in a forked process.

        There the child process belongs to the parent, and the lock may be held by a thread that does not exist.
        """
        self._process_of_parent = self.process  # kept, since a Popen object warns when it is deleted
        self.process = None
        self._lock = threading.Lock()


VERIFIER_PROCESS = VerifierProcess()
atexit.register(VERIFIER_PROCESS.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=VERIFIER_PROCESS.detach_after_fork)


# The code below runs in the child process.


# Cached, since the expected answer is compared with every completion of its group.
@functools.lru_cache(maxsize=1024)
def parse_expression(text: str) -> list:
    """Parse a whole text as one expression with Math-Verify; return an empty list if it is not an expression.

    The text is put in a box, so that Math-Verify cannot pick a single number out of it.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # The parent has handled units. Math-Verify's rule for units would drop the d of "x + 2 d".
    normalisation = NormalizationConfig(units=False, malformed_operators=True, nits=True)
    # If it may extract without an anchor, Math-Verify takes the last number of any sentence.
    extraction = LatexExtractionConfig(
        boxed_match_priority=0, try_extract_without_anchor=False, normalization_config=normalisation
    )
    return parse(rf"\boxed{{{text}}}", [extraction], fallback_mode="no_fallback", parsing_timeout=None)


def compare_numbers_exactly() -> None:
    """Make Math-Verify compare numbers exactly; on its own it rounds them to a millionth or to 15 digits.

    Math-Verify compares the numbers in tuples and matrices by the same function, so those are exact as well.
    """
    from math_verify import verify

    grader: Any = sys.modules[verify.__module__]
    equal_when_rounded = getattr(grader, "sympy_numeric_eq", None)
    if equal_when_rounded is None:
        # A stand-in of the tests, or a version that rounds elsewhere: then the tests of teacher.txt fail.
        return

    def equal_exactly(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
        return equal_when_rounded(a, b, float_rounding, numeric_precision) and not numbers_differ(a, b)

    grader.sympy_numeric_eq = equal_exactly


def numbers_differ(a: Any, b: Any) -> bool:
    """Return True if two numbers of sympy differ.

    Exact numbers must be equal. A decimal may be a rounded number: then a relative difference of 1/10000 is allowed.
    """
    from sympy import Basic, Float

    if not (isinstance(a, Basic) and isinstance(b, Basic)):  # matrices, whose elements are compared one by one
        return False
    difference = a.doit() - b.doit()
    if a.has(Float) or b.has(Float):
        largest = max(abs(a.n(30)), abs(b.n(30)))
        return bool(not difference.free_symbols and abs(difference.n(30)) > 1e-4 * largest)
    return difference.is_zero is False or difference.equals(0) is False


def compare(expected: str, submitted: str) -> str:
    """Compare two texts: return "equal", "different", or "unreadable" if the expected text is not mathematics."""
    from math_verify import verify

    expected_expression, submitted_expression = parse_expression(expected), parse_expression(submitted)
    if not expected_expression:
        return "unreadable"
    # The option makes x > 3 equal to the interval above 3, whichever of the two is expected; but not 2x > 6.
    is_equal = verify(expected_expression, submitted_expression, timeout_seconds=None, allow_set_relation_comp=True)
    return "equal" if is_equal else "different"


@functools.lru_cache(maxsize=8)
def load_dataset(generator: str, options: str) -> Any:
    """Return a dataset of reasoning-gym; `options` is a JSON object with the arguments of the generator."""
    import reasoning_gym

    return reasoning_gym.create_dataset(generator, **json.loads(options))


@functools.lru_cache(maxsize=1024)
def load_problem(generator: str, options: str, index: int) -> dict:
    """Return a problem of a dataset of reasoning-gym."""
    return load_dataset(generator, options)[index]


def score(generator: str, options: str, index: int, answer: str) -> float:
    """Return the verifier's score of an answer to a problem of reasoning-gym.

    Some verifiers evaluate the answer as Python. An answer that raises an exception, or tries to act outside the
    process (see `block_side_effects`), scores 0.
    """
    dataset, problem = load_dataset(generator, options), load_problem(generator, options, index)
    global side_effects_are_blocked
    side_effects_are_blocked = True
    try:
        return float(dataset.score_answer(answer, problem))
    except Exception:
        return 0.0
    finally:
        side_effects_are_blocked = False


side_effects_are_blocked = False  # whether `block_side_effects` is active


def block_side_effects(event: str, arguments: tuple) -> None:
    """Forbid system calls, programs, sockets and opening files for writing, while an answer is scored: an audit hook.

    It prevents accidental harm by Python code that a policy happens to write. It is not a protection against attackers.

    Raises:
        PermissionError: for such an event.
    """
    is_reading = event in ("os.listdir", "os.scandir")
    is_system_call = event.startswith(("os.", "subprocess.", "socket.", "shutil.")) and not is_reading
    is_writing = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if side_effects_are_blocked and (is_system_call or is_writing):
        raise PermissionError(event)


def load_library(function: str) -> str:
    """Load the library that a function needs; return `READY`, or the error in words.

    A call of the function then does not spend its time on loading.
    """
    try:
        if function == "score":
            importlib.import_module("reasoning_gym")
        else:
            compare_numbers_exactly()
            compare("0.5", r"\frac{1}{2}")  # the first comparison loads a grammar
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return READY


def main() -> None:
    """Read a call as a line of JSON, write its result as a line of JSON, and repeat until the input ends."""
    functions: dict[str, Callable[..., object]] = {"load_library": load_library, "compare": compare, "score": score}
    # Text that a library prints must not get between the replies.
    replies, sys.stdout = sys.stdout, sys.stderr
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # Windows has no such limit, and other systems may refuse to set it.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    sys.addaudithook(block_side_effects)
    with open(os.devnull, "w", encoding="utf-8") as devnull:
        for line in sys.stdin:
            function, arguments, time_limit = json.loads(line)
            if function == "score":
                load_problem(*arguments[:-1])  # making the problem does not count as time of the answer
            if time_limit is not None:
                faulthandler.dump_traceback_later(time_limit, exit=True, file=devnull)
            result = functions[function](*arguments)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(result), file=replies, flush=True)


if __name__ == "__main__":
    main()
