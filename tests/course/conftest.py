"""What the tests of the course share."""

import pytest

from grpo_lab.course.guard import snapshot


@pytest.fixture(autouse=True)
def _seen_unpatched():
    """The guard remembers a module as it first sees it: before a test patches one, or the next test finds it changed."""
    snapshot()
