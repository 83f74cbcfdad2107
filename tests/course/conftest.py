"""What the tests of the course share."""

import pytest

from grpo_lab.course.guard import snapshot


@pytest.fixture(autouse=True)
def _seen_unpatched():
    """The guard takes a module to be what it first sees: that must not be what a test has put there for a while."""
    snapshot()
