"""Test mutants in one process: a pytest session whose loop receives mutants from a pipe."""

import contextlib
import inspect
import os
import re
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.mutants.mutant import ROOT, Mutant, swapped


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


def main(connection: Connection, files: list[str]) -> None:
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
