"""`make check` finds the changed files in a clone, in a fork without a branch main, and without git history."""

import shutil
import subprocess

import pytest

from tests import changed

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Make a repository with a commit on main, and a branch with a further commit and an untracked file."""
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    (tmp_path / "first.py").write_text("1")
    git("add", "-A")
    git("commit", "-m", "first")
    git("checkout", "-b", "mine")
    (tmp_path / "second.py").write_text("2")
    git("add", "-A")
    git("commit", "-m", "second")
    (tmp_path / "third.py").write_text("3")
    return git


def test_changed_files_are_those_that_differ_from_main(repository, capsys):
    assert changed.changed_files() == ["second.py", "third.py"], "the local main, since there is no other"
    repository("update-ref", "refs/remotes/origin/main", "mine")
    assert changed.changed_files() == ["third.py"], "that of origin goes before it"
    assert capsys.readouterr().out == ""


def test_changed_files_without_a_main_branch_are_the_uncommitted_ones_with_a_note(repository, capsys):
    repository("branch", "-D", "main")
    assert changed.changed_files() == ["third.py"]
    assert "no branch main is known here: what is not committed counts as changed" in capsys.readouterr().out


def test_make_check_without_git_history_says_so_and_runs_no_test(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(changed.pytest, "main", lambda _: pytest.fail("tests were run"))
    assert changed.main() == 0 and "no git history here, as in a zip" in capsys.readouterr().out
    monkeypatch.setenv("PATH", "")
    assert changed.main() == 0 and "no git history here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("grpo_lab/kl.py", ["tests/test_kl.py"]),
        ("grpo_lab/rollout/sample.py", ["tests/rollout/test_sample.py"]),
        ("grpo_lab/rollout/decoding/sampling_request.py", ["tests/rollout/decoding/test_sampling_request.py"]),
        ("grpo_lab/rollout/environments/tools.py", ["tests/rollout/environments/test_tools.py"]),
        ("grpo_lab/rollout/decoding/cache.py", ["tests/rollout/decoding"]),
        ("grpo_lab/train/options.py", ["tests/train"]),
        ("tests/rollout/test_prompts.py", ["tests/rollout/test_prompts.py"]),
        ("tests/mutants/errata.txt", ["tests/mutants"]),
        ("tests/course/conftest.py", ["tests/course"]),
        ("tests/conftest.py", ["tests"]),
        ("grpo_lab/course/exercises/nb05.yaml", ["tests/course", "tests/test_packaging.py"]),
        ("grpo_lab/diagnose/faults.toml", ["tests/diagnose", "tests/test_packaging.py"]),
        ("grpo_lab/teaching/plots/series.mplstyle", ["tests/teaching/plots", "tests/test_packaging.py"]),
        ("pyproject.toml", ["tests/test_packaging.py"]),
    ],
)
def test_a_file_has_the_tests_of_its_name_or_else_of_the_nearest_folder(path, tests):
    assert changed.tests_of(path) == tests


def test_a_shared_module_has_the_tests_that_import_it_also_through_others():
    """The oracle of the KL is imported by its package and by the oracle of the objective."""
    tests = changed.tests_of("tests/support/oracles/kl.py")
    assert {"tests/test_kl.py", "tests/objective/test_loss.py"} <= set(tests)
    assert "tests/test_doctor.py" not in tests
    assert set(changed.tests_of("tests/support/slow_trainer.py")) < set(
        changed.tests_of("tests/support/small_policy.py")
    )
