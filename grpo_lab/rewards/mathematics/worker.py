"""Math-Verify and the verifiers of reasoning-gym, in one process of their own that can be ended from outside.

Math-Verify limits its own time by SIGALRM, which Windows does not have and which works on the main thread alone. This
file is both ends of the process: the child runs it as a script, so it imports nothing of the package (no torch: it
starts at once). faulthandler's watchdog, a thread of the C library, ends the child when the time of a comparison is
over, even inside one huge integer power. A child whose parent has died ends likewise, at the end of its input.
"""

import atexit
import contextlib
import faulthandler
import functools
import json
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

MEMORY = 4 * 2**30  # bytes of addresses that the child may have


class Worker:
    """The child process: started when first asked, replaced when it ran out of time or died; one batch at a time."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self._lock = threading.Lock()

    def ask(self, function: str, questions: Sequence[tuple], time_limit: float, batch_time_limit: float) -> dict:
        """The reply of a function of the child, "compare" or "score", to each question; None where its time was over.

        The clock of the batch starts when the process is ready and no other batch is running.
        """
        replies = {}
        with self._lock:
            deadline = None
            for question in questions:
                self._start()
                deadline = deadline or time.monotonic() + batch_time_limit
                limit = min(time_limit, deadline - time.monotonic())
                line = json.dumps([function, question, limit]) + "\n"
                replies[question] = self._exchange(line) if limit > 0 else None
        return replies

    def _exchange(self, line: str) -> Any:
        """The reply of the child to this line; None, and no child any more, if it has ended."""
        reply = ""
        try:
            with contextlib.suppress(OSError):
                self.process.stdin.write(line)
                self.process.stdin.flush()
                reply = self.process.stdout.readline()
        finally:
            # Also where somebody interrupts: the reply would be taken for that to the next question.
            if not reply:
                self.end()
        return json.loads(reply) if reply else None

    def _start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.end()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
        # Ctrl-C in a terminal is for the parent alone. -P: the file's folder must hide nobody's modules.
        alone = {"creationflags": getattr(subprocess, "CREATE_NO_WINDOW", 0), "start_new_session": True}
        self.process = subprocess.Popen([sys.executable, "-P", __file__], **pipes, **alone)
        if (status := self._exchange("") or "it ended at once") != "ready":
            self.end()
            from grpo_lab.base.checks import InputPackageError  # the parent's

            needs = f"needs Math-Verify, which did not start ({status})"
            remedy = 'install it with: pip install "grpo-lab[math]"'
            raise InputPackageError("math_reward", None, remedy, found=needs)

    def end(self) -> None:
        """End the process, if there is one; the next batch starts another."""
        process, self.process = self.process, None
        if process is not None:
            # A pipe may have broken with a question still in its buffer, which closing tries to write.
            with contextlib.suppress(OSError), process:
                process.kill()

    def forget(self) -> None:
        """In a forked copy the process is the parent's, and the lock may be held by a thread that is not there."""
        self._of_parent = self.process
        self.process = None
        self._lock = threading.Lock()


WORKER = Worker()
atexit.register(WORKER.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKER.forget)


# What follows runs in the child.


@functools.lru_cache(maxsize=1024)  # the expected answer comes back with every completion of its group
def read(text: str) -> list:
    """The whole of a text as one expression: in a box, so that no number is picked out of it. Empty if it is none."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # Units are looked after before; Math-Verify's would drop the d of "x + 2 d".
    as_written = NormalizationConfig(units=False, malformed_operators=True, nits=True)
    # Without an anchor Math-Verify takes the last number that it finds in a sentence, whatever the sentence says.
    whole = LatexExtractionConfig(
        boxed_match_priority=0, try_extract_without_anchor=False, normalization_config=as_written
    )
    return parse(rf"\boxed{{{text}}}", [whole], fallback_mode="no_fallback", parsing_timeout=None)


def compare_numbers_exactly() -> None:
    """Let Math-Verify find two numbers equal only where they are: by itself it rounds to a millionth, or 15 digits.

    Whatever holds numbers, such as a tuple or a matrix, is compared by the same function.
    """
    from math_verify import verify

    grader = sys.modules[verify.__module__]
    if (rounded := getattr(grader, "sympy_numeric_eq", None)) is None:
        return  # a stand-in of the tests, or a version that rounds elsewhere: teacher.txt would show it

    def exact(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
        return rounded(a, b, float_rounding, numeric_precision) and not are_apart(a, b)

    grader.sympy_numeric_eq = exact


def are_apart(a: Any, b: Any) -> bool:
    """True if two numbers differ: exact ones at all; those with a decimal point, which may be rounded, by 1/10000."""
    from sympy import Basic, Float

    if not (isinstance(a, Basic) and isinstance(b, Basic)):  # matrices: each of their elements comes by itself
        return False
    difference = a.doit() - b.doit()
    if a.has(Float) or b.has(Float):
        return bool(not difference.free_symbols and abs(difference.n(30)) > 1e-4 * max(abs(a.n(30)), abs(b.n(30))))
    return difference.is_zero is False or difference.equals(0) is False


def compare(expected: str, submitted: str) -> str:
    """Compare two texts: "equal", "different", or "unreadable" where the expected text is not mathematics."""
    from math_verify import verify

    gold, answer = read(expected), read(submitted)
    if not gold:
        return "unreadable"
    # x > 3 is the interval from 3 on, whichever of the two is expected; 2x > 6 leaves it to be worked out.
    is_equal = verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True)
    return "equal" if is_equal else "different"


@functools.lru_cache(maxsize=8)
def problems_of(generator: str, options: str) -> Any:
    """A dataset of reasoning-gym; `options` is JSON."""
    import reasoning_gym

    return reasoning_gym.create_dataset(generator, **json.loads(options))


@functools.lru_cache(maxsize=1024)
def problem_of(generator: str, options: str, index: int) -> dict:
    return problems_of(generator, options)[index]


def score(generator: str, options: str, index: int, answer: str) -> float:
    """A verifier's score. Some evaluate the answer as Python: what fails or would leave the process earns nothing."""
    problems, problem = problems_of(generator, options), problem_of(generator, options, index)
    watch.on = True
    try:
        return float(problems.score_answer(answer, problem))
    except Exception:
        return 0.0
    finally:
        watch.on = False


def watch(event: str, arguments: tuple) -> None:
    """An audit hook that stops system calls, programs, sockets and files opened for writing while it is on.

    It keeps a policy's lucky line of Python from harm, and is no wall against an attacker.
    """
    acts = event.startswith(("os.", "subprocess.", "socket.", "shutil.")) and event not in ("os.listdir", "os.scandir")
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if watch.on and (acts or writes):
        raise PermissionError(event)


watch.on = False


def main() -> None:
    """Answer questions, one JSON line in, one JSON line out."""
    # Whatever a library prints must not end up among the replies.
    replies, sys.stdout = sys.stdout, sys.stderr
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit, and some refuse to set it
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.addaudithook(watch)
    try:
        # The first comparison loads the grammar: done here, it does not count against anyone's time.
        compare_numbers_exactly()
        compare("0.5", r"\frac{1}{2}")
        status = "ready"
    except Exception as error:
        status = f"{type(error).__name__}: {error}"
    print(json.dumps(status), file=replies, flush=True)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        for line in sys.stdin:
            function, arguments, time_limit = json.loads(line)
            if function == "score":
                problem_of(*arguments[:-1])  # importing and making it is not the answer's time
            faulthandler.dump_traceback_later(time_limit, exit=True, file=nowhere)
            verdict = {"compare": compare, "score": score}[function](*arguments)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(verdict), file=replies, flush=True)


if __name__ == "__main__":
    main()
