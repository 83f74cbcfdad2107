"""One process that kills mutants: a pytest session whose loop takes orders from a pipe."""

import contextlib
import inspect
import os
import re
import sys
import traceback
from multiprocessing.connection import Connection

from tests.mutants.mutant import ROOT, Mutant, swapped


def main(connection: Connection, files: list[str]) -> None:
    """Collect the tests of `files`, then answer each mutant that arrives with a verdict, until None arrives."""
    os.chdir(ROOT)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  the parent alone prints
    for name, value in (("OMP_NUM_THREADS", "1"), ("GRPO_LAB_PROFILE", "fast"), ("TQDM_DISABLE", "1")):
        os.environ[name] = value
    import pytest
    from hypothesis import Phase, settings

    # One counterexample is enough, and it need not be small.
    settings.register_profile(
        "mutants", phases=[Phase.explicit, Phase.generate], database=None, deadline=None, report_multiple_bugs=False
    )
    settings.load_profile("mutants")
    session = Session(connection)
    options = ["-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    with contextlib.suppress(BrokenPipeError, EOFError):
        code = pytest.main([*options, *files], plugins=[session])
        connection.send(("end", f"pytest ended with {code!s}: {session.trouble}"))


class Session:
    """A pytest plugin whose main loop runs the tests of one mutant after the other."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.items: list = []
        self.names: dict[str, set[str]] = {}
        self.killers: dict[tuple[str, str], list[str]] = {}  # of a group of mutants, the last one first
        self.healthy: dict[str, bool] = {}
        self.trouble = ""

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.trouble += f"\n{report.nodeid}: {report.longrepr}"

    def pytest_runtestloop(self, session) -> bool:
        import pytest

        class Nowhere(pytest.Item):
            """Stands for "the next test is in another file", so that only what the session shares is kept."""

            def runtest(self): ...

        self.items = session.items
        self.names = {item.nodeid: _names(item.function) for item in session.items}
        self.nowhere = Nowhere.from_parent(session, name="nowhere")
        self.connection.send(("ready", self.trouble))
        while (mutant := self.connection.recv()) is not None:
            try:
                self.connection.send(("verdict", self.verdict(mutant)))
            except Exception:
                self.connection.send(("error", f"{mutant.name}: {traceback.format_exc()}"))
        self.connection.send(("leaks", self.leaks()))
        return True

    def verdict(self, mutant: Mutant) -> tuple[str | None, str]:
        """The test that kills the mutant and its complaint, or None and what was tried."""
        tried = 0
        for item in self.in_order(mutant):
            if not self.is_healthy(item):
                continue
            tried += 1
            with swapped(mutant):
                complaint = self.run(item)
            if complaint:
                killers = self.killers.setdefault(mutant.group, [])
                self.killers[mutant.group] = [item.nodeid, *(k for k in killers if k != item.nodeid)]
                return item.nodeid, complaint
        broken = sorted(nodeid for nodeid, healthy in self.healthy.items() if not healthy)
        return None, f"{tried} tests passed" + (f"; fail without a mutant: {', '.join(broken)}" if broken else "")

    def in_order(self, mutant: Mutant) -> list:
        """The mutant's tests: last killers of its group first, then those that call its function, then the others.

        Each time those of the last file come first: they are short, and there because the other files let one through.
        """
        files = mutant.tests[-1:] + mutant.tests[:-1]
        item_by_id = {i.nodeid: i for file in files for i in self.items if i.nodeid.startswith(file + "::")}
        killers = [nodeid for nodeid in self.killers.get(mutant.group, []) if nodeid in item_by_id]
        callers = [nodeid for nodeid in item_by_id if mutant.function in self.names[nodeid]]
        return [item_by_id[nodeid] for nodeid in dict.fromkeys([*killers, *callers, *item_by_id])]

    def is_healthy(self, item) -> bool:
        """Whether the test passes on the code as it is; asked before its first use, which sets up what it shares."""
        if item.nodeid not in self.healthy:
            self.healthy[item.nodeid] = not self.run(item)
        return self.healthy[item.nodeid]

    def leaks(self) -> list[str]:
        """Killers that now fail on the code as it is: a mutant left something behind, and no verdict can be trusted."""
        killers = {k for group in self.killers.values() for k in group}
        return [item.nodeid for item in self.items if item.nodeid in killers and self.run(item)]

    def run(self, item) -> str:
        """The complaint of a test that failed, or ""."""
        from _pytest.runner import runtestprotocol

        reports = runtestprotocol(item, log=False, nextitem=self.nowhere)
        failed = [report for report in reports if report.failed]
        crash = getattr(failed[0].longrepr, "reprcrash", None) if failed else None
        return "" if not failed else (crash.message if crash else str(failed[0].longrepr)).splitlines()[0]


def _names(test) -> set[str]:
    """The identifiers in the source of a test; none if the file changed since it was imported."""
    try:
        return set(re.findall(r"\w+", inspect.getsource(test)))
    except OSError:
        return set()
