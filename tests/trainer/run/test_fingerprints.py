"""Fingerprints of the user's functions: two files of one name both count, and the order of loading does not."""

import importlib
import sys

import pytest

from grpo_lab.base.user_code import import_user_object
from grpo_lab.trainer.run.fingerprints import UNCOMPARABLE, code_fingerprint


@pytest.fixture
def twins(tmp_path, monkeypatch):
    """Return a function that loads `brief` from rewards_twin.py of folder "a" or "b"; the modules are forgotten."""
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        text = f"def brief(completions): return [{ord(folder)}.0]"
        (tmp_path / folder / "rewards_twin.py").write_text(text, encoding="utf-8")
    yield lambda folder: import_user_object("reward_funcs", f"{folder}/rewards_twin.py:brief", "my_rewards:brief")
    forget_twins()


def forget_twins():
    for name in [name for name in sys.modules if "rewards_twin" in name]:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_two_files_of_one_name_are_both_compared(twins):
    both = code_fingerprint([twins("a"), twins("b")])
    assert both["functions"] == ["rewards_twin.brief"] * 2 and both[UNCOMPARABLE] == []
    hashes = {key: value for key, value in both.items() if key.startswith("rewards_twin.py")}
    assert len(hashes) == len({*hashes.values()}) == 2


def test_the_fingerprint_of_a_file_is_the_same_whatever_was_loaded_before(twins):
    alone = code_fingerprint([twins("b")])
    forget_twins()
    assert twins("a") is not twins("b") and code_fingerprint([twins("b")]) == alone
