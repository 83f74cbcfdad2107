r"""Mathematical equality: 0.5 is 1/2 is \frac{1}{2}, decided by Math-Verify within a time limit.

Math-Verify limits its own time by SIGALRM, which Windows does not have and which works on the main thread alone;
elsewhere it asks for the limit to be switched off. Here it runs in one child process that is replaced when it takes too
long, which works everywhere: in a notebook, in a thread, in a script without a `__main__` guard.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from grpo_lab.rewards.text import completion_text, expected_texts, extract_answer, fold


def math_reward(completions: Any, answer: Any, time_limit: float = 3.0, **kwargs: Any) -> list[float | None]:
    r"""1.0 if the answer equals the expected one as mathematics, else 0.0.

    r_{\mathrm{math}}(y, a) = \mathbb{1}[\hat a(y) \equiv a] \tag{6.5}

    The answer is what the last answer block holds, all of it: "4" and "x=4" equal 4, "4 or 5" and "the answer is 4" do
    not. Without an answer block it is the `\boxed{}` after the thinking, as in TRL's `accuracy_reward`. Numbers are
    equal to six decimals: 0.333333 is 1/3, 0.33333 is not. 50% is 1/2, a unit is passed over, and of an equation the
    right-hand side counts.

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected expressions, plain ("1/2") or LaTeX ("\frac{1}{2}", "$x+1$"), one a completion. The
            reward does not apply (None) where it is None, or where Math-Verify cannot read it; the latter gives a
            warning.
        time_limit: seconds a completion may take, more than 0. One that takes longer scores 0.0, as a wrong one does,
            and is counted in a warning: if it scored None, a response that cannot be evaluated would be a way out.
        kwargs: other columns, unused.

    Raises:
        ImportError: if Math-Verify is not installed.
    """
    if not 0 < time_limit <= 3600:
        raise ValueError(f"math_reward: time_limit is {time_limit}; it must be positive, and at most 3600 seconds")
    expected = [None if a is None else _expression(a) for a in expected_texts("math_reward", completions, answer)]
    pairs = [(a, _given(completion_text(y))) for a, y in zip(expected, completions, strict=True)]
    # A group often repeats an answer: each distinct pair is compared once.
    verdicts = {pair: _WORKER.compare(*pair, time_limit) for pair in dict.fromkeys(pairs) if pair[0] is not None}
    rewards: list[float | None] = []
    for pair in pairs:
        verdict = verdicts.get(pair, "unreadable")
        reward = float(verdict == "equal")  # scalar (6.5)
        rewards.append(None if verdict == "unreadable" else reward)
    _warn(pairs, verdicts, time_limit)
    return rewards


def _expression(text: str) -> str:
    r"""The whole of a text as one expression: in a box, so that Math-Verify does not pick a number out of it."""
    return rf"\boxed{{{_cleaned(text).rstrip('.')}}}"


def _given(text: str) -> str:
    if "</answer>" in text:
        return _expression(extract_answer(text) or "")
    return _cleaned(text.rpartition("</think>")[2])


def _cleaned(text: str) -> str:
    return fold(text).replace("\N{MINUS SIGN}", "-")


def _warn(pairs: list, verdicts: dict, time_limit: float) -> None:
    late = f"completions were not evaluated within {time_limit:g} s and scored 0.0"
    unread = "expected answers cannot be read as mathematics, so no reward applies"
    for verdict, problem, which in (("timeout", late, 1), ("unreadable", unread, 0)):
        rows = [row for row, pair in enumerate(pairs) if verdicts.get(pair) == verdict]
        if rows:
            first = f"first: row {rows[0]}, {pairs[rows[0]][which][:80]!r}"
            warnings.warn(f"math_reward: {len(rows)} of {len(pairs)} {problem}; {first}", RuntimeWarning, stacklevel=3)


class _Worker:
    """The one child process that compares expressions; started when first needed, replaced when it ran out of time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._owner = 0

    def compare(self, expected: str, given: str, time_limit: float) -> str:
        """One of "equal", "different", "unreadable" (the expected expression is) and "timeout"."""
        with self._lock:
            process = self._running()
            try:
                process.stdin.write(json.dumps([expected, given, time_limit]) + "\n")
                process.stdin.flush()
                reply = process.stdout.readline()
            except OSError:
                reply = ""
            except BaseException:
                # Interrupted between question and reply: the reply would be taken for that to the next question.
                self._end()
                raise
            if not reply:
                self._end()
                return "timeout"
            return json.loads(reply)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen:
        if self._owner != os.getpid():
            self._process = None  # a forked copy: the pipes belong to the parent
        elif self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._start()
        return self._process

    def _start(self) -> None:
        # -P: the worker's folder holds modules of ours whose names must not hide other people's.
        command = [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))]
        no_window = getattr(subprocess, "CREATE_NO_WINDOW", 0)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8", creationflags=no_window)
        self._owner = os.getpid()
        try:
            line = self._process.stdout.readline()
        except BaseException:
            self._end()
            raise
        status = json.loads(line) if line else f"exit status {self._process.wait()}"
        if status != "ready":
            self._end()
            remedy = "install it with: pip install math-verify"
            raise ImportError(f"math_reward needs Math-Verify, which did not start ({status}); {remedy}")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        process.stdout.close()
        # The pipe may have broken with a question still in its buffer, which closing tries to write.
        with contextlib.suppress(OSError):
            process.stdin.close()


_WORKER = _Worker()
atexit.register(_WORKER.close)
