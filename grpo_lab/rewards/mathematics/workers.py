"""Child processes that compare expressions: several at once, each replaced when it ran out of time, all bounded.

Math-Verify limits its own time by SIGALRM, which Windows does not have and which works on the main thread alone. Here
it runs in processes of its own that can be ended from outside, which works everywhere: in a notebook, in a thread, in a
script without a `__main__` guard.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

MOST = 4
# A batch that takes longer than this gets the other processes too; starting one takes about as long.
PATIENCE = 0.75  # seconds
UNREACHED = "unreached"


class Worker:
    """One child process; started when first asked, replaced when it ran out of time."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None

    def compare(self, expected: str, given: str, time_limit: float) -> str:
        """One of "equal", "different", "unreadable" (the expected expression is) and "timeout"."""
        self.start()
        try:
            self.process.stdin.write(json.dumps([expected, given, time_limit]) + "\n")
            self.process.stdin.flush()
            reply = self.process.stdout.readline()
        except OSError:
            reply = ""
        except BaseException:
            # Interrupted between question and reply: the reply would be taken for that to the next question.
            self.end()
            raise
        if not reply:
            self.end()
            return "timeout"
        return json.loads(reply)

    def start(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            self.end()
        if self.process is not None:
            return
        # -P: the worker's folder holds modules of ours whose names must not hide other people's.
        command = [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))]
        no_window = getattr(subprocess, "CREATE_NO_WINDOW", 0)
        pipe = subprocess.PIPE
        # In a session of its own: Ctrl-C in the terminal is for the run, which finishes its step with this worker.
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, encoding="utf-8", creationflags=no_window, start_new_session=True
        )
        try:
            line = self.process.stdout.readline()
        except BaseException:
            self.end()
            raise
        status = json.loads(line) if line else f"exit status {self.process.wait()}"
        if status != "ready":
            self.end()
            remedy = "install it with: pip install math-verify"
            raise ImportError(f"math_reward needs Math-Verify, which did not start ({status}); {remedy}")

    def kill(self) -> None:
        """End the process from another thread: whoever waits for its reply finds the pipe closed."""
        if (process := self.process) is not None:
            process.kill()

    def end(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        process.stdout.close()
        # The pipe may have broken with a question still in its buffer, which closing tries to write.
        with contextlib.suppress(OSError):
            process.stdin.close()


class Pool:
    """Up to four workers, no more than there are processors; one batch at a time."""

    def __init__(self) -> None:
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.size = min(MOST, processors)
        self.workers: list[Worker] = []
        self._lock = threading.Lock()

    def compare(self, questions: list[tuple[str, str]], time_limit: float, batch_time_limit: float) -> list[str]:
        """The verdict on each (expected, given), as of `Worker.compare`, or "unreached" when the time was over.

        The clock of the batch starts when the first process is ready and no other batch is running.
        """
        if not questions:
            return []
        with self._lock:
            self.workers = self.workers or [Worker()]
            self.workers[0].start()
            return _Batch(self, questions, time_limit, time.monotonic() + batch_time_limit).run()

    def close(self) -> None:
        with self._lock:
            while self.workers:
                self.workers.pop().end()

    def forget(self) -> None:
        """In a forked copy the processes are the parent's, and the lock may be held by a thread that is not there."""
        self._of_parent, self.workers, self._lock = self.workers, [], threading.Lock()


class _Batch:
    """The questions of one call. The caller asks them one after another; others join in when that takes long."""

    def __init__(self, pool: Pool, questions: list[tuple[str, str]], time_limit: float, deadline: float) -> None:
        self.pool, self.questions, self.time_limit, self.deadline = pool, questions, time_limit, deadline
        self.verdicts = [UNREACHED] * len(questions)
        # Those that look costly come last, so that they keep nobody waiting.
        self.left = deque(sorted(range(len(questions)), key=lambda row: _cost(questions[row][1])))
        # Events, no threads to join: before Python 3.13, a join that Ctrl-C interrupts takes the thread for ended.
        self.employed: list[tuple[Worker, threading.Event]] = []
        self.stopped, self.error = False, None

    def run(self) -> list[str]:
        own, begin = self.pool.workers[0], time.monotonic()
        try:
            while self._ask_next(own):
                if time.monotonic() - begin > PATIENCE and not self.employed:
                    self._employ(self.pool.size - 1)
            for _, finished in self.employed:
                finished.wait(max(0.0, self.deadline - time.monotonic()))
        except BaseException:
            own.end()
            raise
        finally:
            self._stop()
        if self.error:
            raise self.error
        return self.verdicts

    def _ask_next(self, worker: Worker) -> bool:
        """False when there is nothing left to ask, or no time."""
        remaining = self.deadline - time.monotonic()
        if self.stopped or remaining <= 0:
            return False
        try:
            row = self.left.popleft()
        except IndexError:
            return False
        verdict = worker.compare(*self.questions[row], min(self.time_limit, remaining))
        late = verdict == "timeout" and remaining < self.time_limit
        if not self.stopped and not late:
            self.verdicts[row] = verdict
        return True

    def _employ(self, most: int) -> None:
        for number in range(1, 1 + min(most, len(self.left))):
            if number == len(self.pool.workers):
                self.pool.workers.append(Worker())
            worker, finished = self.pool.workers[number], threading.Event()
            self.employed.append((worker, finished))
            threading.Thread(target=self._work, args=(worker, finished), daemon=True).start()

    def _work(self, worker: Worker, finished: threading.Event) -> None:
        try:
            while self._ask_next(worker):
                pass
        except BaseException as error:
            # One that had to give way when the batch was over is no error.
            self.error = self.error or (None if self.stopped else error)
        finally:
            finished.set()

    def _stop(self) -> None:
        """End the workers that are still at it. The pool forgets them first: whatever comes in between, no later batch
        may read a reply of theirs."""
        self.stopped = True
        late = [(worker, finished) for worker, finished in self.employed if not finished.is_set()]
        self.pool.workers = [worker for worker in self.pool.workers if worker not in [w for w, _ in late]]
        for worker, finished in late:
            for _ in range(100):
                worker.kill()  # again, for it may have started another process in between
                if finished.wait(0.05):
                    break
            worker.end()


def _cost(given: str) -> tuple[int, int]:
    return given.count("^") + given.count("!"), len(given)


POOL = Pool()
atexit.register(POOL.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.forget)
