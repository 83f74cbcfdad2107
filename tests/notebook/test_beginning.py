"""What a notebook begins with: its profile is that of a reader, unless a test runs it or a variable says otherwise."""

import os
import subprocess
import sys

import nbformat
import pytest

from grpo_lab.notebook import fast_or_full, profile

SAYS = "import os\nfrom grpo_lab.notebook import profile\nassert profile() == {want!r}, (profile(), sorted(os.environ))"


def test_a_variable_chooses_and_without_it_pytest_is_fast(monkeypatch):
    for variable, by_pytest, want in [
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
        assert profile() == want and fast_or_full("fast", "full") == want
    monkeypatch.setenv("GRPO_LAB_PROFILE", "quick")
    with pytest.raises(ValueError, match="GRPO_LAB_PROFILE is 'quick'; expected one of 'fast', 'full'"):
        profile()


@pytest.mark.slow
def test_nbmake_runs_notebooks_fast_whatever_else_is_set(tmp_path):
    pytest.importorskip("nbmake")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SAYS.format(want="fast"))])
    nbformat.write(notebook, tmp_path / "says.ipynb")
    # No tests/conftest.py is there to set the variable, as on `pytest --nbmake notebooks`.
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("GRPO_LAB_PROFILE", "PYTEST"))}
    command = [sys.executable, "-m", "pytest", "--nbmake", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, encoding="utf-8", errors="replace")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
