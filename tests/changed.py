"""Run the tests of the files that differ from main: `python -m tests.changed`."""

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent


def changed_files() -> list[str]:
    """Return the files that differ from the commit where this branch left main, including uncommitted and new files.

    Without a branch main, the files are compared with the last commit, and a line is printed.
    """
    branches = (git("merge-base", "HEAD", f"{remote}main") for remote in ("upstream/", "origin/", ""))
    if (base := next((commits[0] for commits in branches if commits), None)) is None:
        print("no branch main is known here: what is not committed counts as changed")
        base = "HEAD"
    return [*git("diff", "--name-only", "--diff-filter=d", base), *git("ls-files", "--others", "--exclude-standard")]


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints, or none if git fails or is not installed."""
    try:
        result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    except FileNotFoundError:
        return []
    return result.stdout.splitlines() if result.returncode == 0 else []


def tests_of(path: str) -> list[str]:
    """Return the tests of a file: the file itself, tests with its name, or else the tests of the nearest package."""
    module = PurePosixPath(path)
    if module.parts[0] == "tests":
        return [path] if module.name.startswith("test_") else []
    if module.parts[0] in ("notebooks", "po"):
        return ["tests/notebooks"]
    if module.suffix != ".py" or module.parts[0] != "grpo_lab":
        return ["tests/test_packaging.py"]
    module = PurePosixPath(*module.with_suffix("").parts[1:])
    tests = _named_after(module)
    while not tests and module.parent.name:
        module = module.parent
        tests = [f"tests/{module}"] if (ROOT / "tests" / module).is_dir() else _named_after(module)
    return tests or ["tests/base", "tests/test_layout.py"]


def _named_after(module: PurePosixPath) -> list[str]:
    tests = sorted((ROOT / "tests" / module.parent).glob(f"test_{module.name}*.py"))
    return [path.relative_to(ROOT).as_posix() for path in tests]


def main() -> int:
    top = git("rev-parse", "--show-toplevel")
    if not top or Path(top[0]).resolve() != ROOT.resolve() or not git("rev-parse", "HEAD"):
        print("no git history here, as in a zip: no test was run, since nothing says what changed; make test runs all")
        return 0
    tests = sorted({test for path in changed_files() for test in tests_of(path) if (ROOT / test).exists()})
    if not tests:
        print("nothing has changed that a test is named after; `make test` runs them all")
        return 0
    print("tests of what changed:", *tests)
    return int(pytest.main(["-q", "-n", "2", "-m", "not slow and not browser", *tests]))


if __name__ == "__main__":
    sys.exit(main())
