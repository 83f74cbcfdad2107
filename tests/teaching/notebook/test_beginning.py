"""The profile of a notebook: full for readers and fast in tests, unless the environment variable sets it."""

import pytest

from grpo_lab.teaching.notebook import fast_or_full, profile


def test_fast_mode_is_chosen_by_a_variable_or_by_pytest(monkeypatch):
    for variable, by_pytest, expected in [
        (None, False, "full"),
        (None, True, "fast"),
        ("full", True, "full"),
        ("fast", False, "fast"),
    ]:
        for name, value in (
            ("GRPO_LAB_PROFILE", variable),
            ("PYTEST_CURRENT_TEST", "notebooks/08_grpo_on_qwen2.ipynb:: (call)" if by_pytest else None),
        ):
            monkeypatch.delenv(name, raising=False)
            if value:
                monkeypatch.setenv(name, value)
        assert profile() == expected
        assert fast_or_full("fast", "full") == expected
    monkeypatch.setenv("GRPO_LAB_PROFILE", "quick")
    with pytest.raises(ValueError, match="GRPO_LAB_PROFILE is 'quick'; expected one of 'fast', 'full'"):
        profile()
