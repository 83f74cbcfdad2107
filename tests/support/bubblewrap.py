"""Test whether bubblewrap works on this machine, and mark the tests that need it."""

import pytest

from grpo_lab.sandbox import isolation

# `available_sandbox` is not used, because it would also start Docker, in each process that collects the tests.
NO_BUBBLEWRAP = isolation.reason_of_failure([*isolation.bubblewrap_command([], "/"), "true"])
needs_bubblewrap = pytest.mark.skipif(
    bool(NO_BUBBLEWRAP), reason="bubblewrap is not installed, or may not be used here"
)
