"""The map of the package, made once."""

import pytest

from grpo_lab.formulas import formula_map


@pytest.fixture(scope="session")
def known() -> dict:
    """Every equation by its tag; to list them, all of the package is imported."""
    return formula_map()
