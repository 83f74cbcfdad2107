"""Whether bubblewrap can isolate a process on this machine, and the mark of tests that need it."""

import pytest

from grpo_lab.sandbox import isolation

# Not by available_sandbox, which would go on to ask Docker, of each process that collects the tests.
NO_BUBBLEWRAP = isolation._fails([*isolation._bubblewrap([], "/"), "true"])
needs_bubblewrap = pytest.mark.skipif(
    bool(NO_BUBBLEWRAP), reason="bubblewrap is not installed, or may not be used here"
)
