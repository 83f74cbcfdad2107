"""What the tests of the trainer share: a disk that nobody waits for, and a run that nothing disturbs."""

import os

import pytest

from tests.support.resuming import cheap_run, real_run


@pytest.fixture(autouse=True)
def _nobody_waits_for_the_disk(request, monkeypatch):
    """No power fails in a quick test; the long ones wait. (An axe takes note of what is waited for, see there.)"""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    return cheap_run(tmp_path_factory.mktemp("undisturbed") / "out")


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    """With everything that a run may have; no test changes it."""
    return real_run(tmp_path_factory.mktemp("whole") / "out")
