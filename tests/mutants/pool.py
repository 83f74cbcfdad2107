"""Test mutants in worker processes: distribute them, and end the processes that hang.

A worker is a pytest session whose loop receives mutants from a pipe.
"""

import contextlib
import inspect
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from tests.mutants.mutant import ROOT, Mutant, swapped

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
        self.process = context.Process(target=run_worker, args=(theirs, self.files), daemon=True)
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
            message: WorkerMessage = self.connection.recv()
        except (EOFError, OSError):
            yield from self._lost("the process ended")
            return
        match message:
            case Collected(trouble):
                if trouble:
                    raise WorkerError(trouble)
                self.idle = True
            case Tested(killer, detail):
                yield MutantResult(self.mutant, killer, detail, time.monotonic() - self.busy_since)
                self.idle = True
            case Finished(leaks):
                self.alive = False
                if leaks:
                    raise WorkerError(f"a mutant left a trace, these tests now fail without one: {', '.join(leaks)}")
            case Broken(reason):
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


@dataclass(frozen=True)
class Collected:
    """The worker's first message: it has collected the tests; `trouble` says which files could not be collected."""

    trouble: str


@dataclass(frozen=True)
class Tested:
    """The result of one mutant.

    Attributes:
        killer: The id of the test that killed the mutant; None if it survived.
        detail: The message of that test, or the number of tests that passed.
    """

    killer: str | None
    detail: str


@dataclass(frozen=True)
class Finished:
    """The worker's last message; `leaks` are the ids of tests that fail now although no mutant is in place."""

    leaks: list[str]


@dataclass(frozen=True)
class Broken:
    """The tests cannot run properly, for this reason."""

    reason: str


WorkerMessage = Collected | Tested | Finished | Broken


def run_worker(connection: Connection, files: list[str]) -> None:
    """Collect the tests of `files`, then receive mutants and send the result of each, until None arrives."""
    os.chdir(ROOT)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  only the parent process prints
    for name, value in (("OMP_NUM_THREADS", "1"), ("GRPO_LAB_PROFILE", "fast"), ("TQDM_DISABLE", "1")):
        os.environ[name] = value
    import pytest
    from hypothesis import Phase, settings

    # A single counterexample kills a mutant, and it is not shrunk.
    settings.register_profile(
        "mutants", phases=[Phase.explicit, Phase.generate], database=None, deadline=None, report_multiple_bugs=False
    )
    settings.load_profile("mutants")
    session = Session(connection)
    options = ["-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    with contextlib.suppress(BrokenPipeError, EOFError):
        code = pytest.main([*options, *files], plugins=[session])
        connection.send(Broken(f"pytest ended with {code!s}: {session.trouble}"))


class Session:
    """A pytest plugin whose main loop runs the tests of each mutant in turn."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.items: list = []
        self.names: dict[str, set[str]] = {}
        self.killers: dict[tuple[str, str], list[str]] = {}  # group of mutants: ids of killers, the last one first
        self.healthy: dict[str, bool] = {}
        self.trouble = ""

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.trouble += f"\n{report.nodeid}: {report.longrepr}"

    def pytest_runtestloop(self, session) -> bool:
        import pytest

        class Nowhere(pytest.Item):
            """A next test in another file, so that pytest tears down all fixtures but those of the session."""

            def runtest(self): ...

        self.items = session.items
        self.names = {item.nodeid: _names(item.function) for item in session.items}
        self.nowhere = Nowhere.from_parent(session, name="nowhere")
        self.connection.send(Collected(self.trouble))
        while (mutant := self.connection.recv()) is not None:
            try:
                self.connection.send(self.test(mutant))
            except Exception:
                self.connection.send(Broken(f"{mutant.name}: {traceback.format_exc()}"))
        self.connection.send(Finished(self.leaks()))
        return True

    def test(self, mutant: Mutant) -> Tested:
        """Run the tests of a mutant until one of them kills it."""
        tried = 0
        for item in self.in_order(mutant):
            if not self.is_healthy(item):
                continue
            tried += 1
            with swapped(mutant):
                message = self.run(item)
            if message:
                killers = self.killers.setdefault(mutant.group, [])
                self.killers[mutant.group] = [item.nodeid, *(k for k in killers if k != item.nodeid)]
                return Tested(item.nodeid, message)
        broken = sorted(nodeid for nodeid, healthy in self.healthy.items() if not healthy)
        without_mutant = f"; fail without a mutant: {', '.join(broken)}" if broken else ""
        return Tested(None, f"{tried} tests passed{without_mutant}")

    def in_order(self, mutant: Mutant) -> list:
        """Return the mutant's tests: last killers of its group, then tests that name its function, then the others.

        Within each of these, tests of the last file come first: they are short, and were written for survivors.
        """
        files = mutant.tests[-1:] + mutant.tests[:-1]
        item_by_id = {i.nodeid: i for file in files for i in self.items if i.nodeid.startswith(file + "::")}
        killers = [nodeid for nodeid in self.killers.get(mutant.group, []) if nodeid in item_by_id]
        callers = [nodeid for nodeid in item_by_id if mutant.function in self.names[nodeid]]
        return [item_by_id[nodeid] for nodeid in dict.fromkeys([*killers, *callers, *item_by_id])]

    def is_healthy(self, item) -> bool:
        """Return whether the test passes without a mutant; checked once, which also sets up shared fixtures."""
        if item.nodeid not in self.healthy:
            self.healthy[item.nodeid] = not self.run(item)
        return self.healthy[item.nodeid]

    def leaks(self) -> list[str]:
        """Return killers that now fail without a mutant: a mutant left a trace, so no result can be trusted."""
        killers = {k for group in self.killers.values() for k in group}
        return [item.nodeid for item in self.items if item.nodeid in killers and self.run(item)]

    def run(self, item) -> str:
        """Run a test; return the message of its failure, or "" if it passes."""
        from _pytest.runner import runtestprotocol

        reports = runtestprotocol(item, log=False, nextitem=self.nowhere)
        failed = [report for report in reports if report.failed]
        crash = getattr(failed[0].longrepr, "reprcrash", None) if failed else None
        return "" if not failed else (crash.message if crash else str(failed[0].longrepr)).splitlines()[0]


def _names(test) -> set[str]:
    """Return the identifiers in the source of a test, or none if the source cannot be read."""
    try:
        return set(re.findall(r"\w+", inspect.getsource(test)))
    except OSError:
        return set()
