"""Distribute mutants to worker processes, and end the processes that hang."""

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait

from tests.mutants import worker
from tests.mutants.mutant import ROOT, Mutant

START_SECONDS, MUTANT_SECONDS = 300, 300


@dataclass
class Trial:
    mutant: Mutant
    killer: str | None  # id of the test that killed the mutant; None if it survived
    detail: str
    seconds: float


class WorkerError(RuntimeError):
    """Raised if the tests cannot run properly, so that no verdict can be trusted."""


def judge(mutants: list[Mutant], workers: int) -> Iterator[Trial]:
    """Yield the verdicts as they arrive. A worker takes whole groups of mutants and tries the last killer first."""
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(mutant.group, []).append(mutant)
    queue = sorted(groups.values(), key=len)
    files = sorted({file for mutant in mutants for file in mutant.tests if (ROOT / file).exists()})
    pool = [_Worker(files, queue) for _ in range(max(1, min(workers, len(queue))))]
    try:
        while any(w.alive for w in pool):
            ready = wait([w.connection for w in pool if w.alive], timeout=1.0)
            for w in pool:
                if w.alive:
                    yield from w.receive() if w.connection in ready else w.look_after()
                w.give_work()
    finally:
        for w in pool:
            w.end()


class _Worker:
    """The parent's view of one worker process."""

    def __init__(self, files: list[str], queue: list[list[Mutant]]):
        self.files, self.queue, self.todo, self.alive = files, queue, [], True
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=worker.main, args=(theirs, self.files), daemon=True)
        self.process.start()
        theirs.close()
        self.idle, self.mutant, self.since = False, None, time.monotonic()

    def give_work(self) -> None:
        """Send an idle worker the next mutant of its group, or of another group, or None, which ends it."""
        if not (self.alive and self.idle):
            return
        if not self.todo and self.queue:
            self.todo = self.queue.pop()
        self.mutant, self.todo = (self.todo[0], self.todo[1:]) if self.todo else (None, [])
        self.idle, self.since = False, time.monotonic()
        self.connection.send(self.mutant)

    def receive(self) -> Iterator[Trial]:
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            yield from self._lost("the process ended")
            return
        if kind == "verdict":
            yield Trial(self.mutant, *content, time.monotonic() - self.since)
        elif kind == "leaks":
            self.alive = False
            if content:
                raise WorkerError(f"a mutant left a trace, these tests now fail without one: {', '.join(content)}")
        elif content:
            raise WorkerError(content)
        self.idle = kind in ("ready", "verdict")

    def look_after(self) -> Iterator[Trial]:
        seconds = time.monotonic() - self.since
        if seconds > (START_SECONDS if self.mutant is None else MUTANT_SECONDS):
            yield from self._lost(f"no end within {seconds:.0f} s")

    def _lost(self, reason: str) -> Iterator[Trial]:
        """Count a mutant that hangs or ends the process as killed, and start a new process for the next one."""
        if self.mutant is None:
            raise WorkerError(f"a worker was lost without a mutant: {reason}")
        yield Trial(self.mutant, "(the process)", reason, time.monotonic() - self.since)
        self.end()
        self.alive = bool(self.todo or self.queue)
        if self.alive:
            self._start()

    def end(self) -> None:
        self.process.join(0 if self.alive else 10)  # a finished worker ends by itself
        self.process.kill()
        self.process.join()
        self.connection.close()
