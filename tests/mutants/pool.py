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
class MutantResult:
    """The result of one mutant.

    Attributes:
        killer: The id of the test that killed the mutant, or "(the process)"; None if it survived.
        detail: The message of that test, or the number of tests that passed.
    """

    mutant: Mutant
    killer: str | None
    detail: str
    seconds: float


class WorkerError(RuntimeError):
    """Raised if the tests cannot run properly, so that no result can be trusted."""


def run_mutants(mutants: list[Mutant], workers: int) -> Iterator[MutantResult]:
    """Test every mutant, and yield the results as they arrive.

    A worker takes whole groups of mutants and tries the last killer first.
    """
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
                    yield from w.receive() if w.connection in ready else w.check_time()
                w.give_work()
    finally:
        for w in pool:
            w.end()


class _Worker:
    """One worker process, as the process that distributes the mutants sees it.

    Attributes:
        alive: Whether the process runs and may send messages.
        idle: Whether it waits for a mutant.
        mutant: The mutant that it tests; None while it starts, and after the last one.
        todo: The other mutants of the same group.
        busy_since: The time, by `time.monotonic`, at which it was started or got its mutant.
    """

    def __init__(self, files: list[str], queue: list[list[Mutant]]):
        self.files, self.queue, self.todo, self.alive = files, queue, [], True
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=worker.main, args=(theirs, self.files), daemon=True)
        self.process.start()
        theirs.close()
        self.idle, self.mutant, self.busy_since = False, None, time.monotonic()

    def give_work(self) -> None:
        """Send an idle worker the next mutant of its group, or of another group, or None, which ends it."""
        if not (self.alive and self.idle):
            return
        if not self.todo and self.queue:
            self.todo = self.queue.pop()
        self.mutant, self.todo = (self.todo[0], self.todo[1:]) if self.todo else (None, [])
        self.idle, self.busy_since = False, time.monotonic()
        self.connection.send(self.mutant)

    def receive(self) -> Iterator[MutantResult]:
        """Process one message of the worker."""
        try:
            message: worker.WorkerMessage = self.connection.recv()
        except (EOFError, OSError):
            yield from self._lost("the process ended")
            return
        match message:
            case worker.Collected(trouble):
                if trouble:
                    raise WorkerError(trouble)
                self.idle = True
            case worker.Tested(killer, detail):
                yield MutantResult(self.mutant, killer, detail, time.monotonic() - self.busy_since)
                self.idle = True
            case worker.Finished(leaks):
                self.alive = False
                if leaks:
                    raise WorkerError(f"a mutant left a trace, these tests now fail without one: {', '.join(leaks)}")
            case worker.Broken(reason):
                raise WorkerError(reason)

    def check_time(self) -> Iterator[MutantResult]:
        seconds = time.monotonic() - self.busy_since
        if seconds > (START_SECONDS if self.mutant is None else MUTANT_SECONDS):
            yield from self._lost(f"no end within {seconds:.0f} s")

    def _lost(self, reason: str) -> Iterator[MutantResult]:
        """Count a mutant that hangs or ends the process as killed, and start a new process for the next one."""
        if self.mutant is None:
            raise WorkerError(f"a worker was lost without a mutant: {reason}")
        yield MutantResult(self.mutant, "(the process)", reason, time.monotonic() - self.busy_since)
        self.end()
        self.alive = bool(self.todo or self.queue)
        if self.alive:
            self._start()

    def end(self) -> None:
        self.process.join(0 if self.alive else 10)  # a finished worker ends by itself
        self.process.kill()
        self.process.join()
        self.connection.close()
