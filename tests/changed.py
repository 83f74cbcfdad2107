"""Run the tests of the files that differ from main: `python -m tests.changed`."""

import ast
import subprocess
import sys
from functools import cache
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
    """Return the tests of a file.

    - A test: itself.
    - A module that tests share: the tests that import it, directly or through other modules; without any, and for data
      of tests and a conftest.py, the tests of the nearest folder.
    - A file of the package: the tests with its name, or else those of the nearest folder; for data also those of
      packaging.
    """
    file = PurePosixPath(path)
    if file.parts[0] == "tests":
        if file.name.startswith("test_"):
            return [path]
        return _tests_that_import(file) or [_nearest_folder(file.parent)]
    if file.parts[0] in ("notebooks", "po"):
        return ["tests/notebooks"]
    if file.parts[0] != "grpo_lab":
        return ["tests/test_packaging.py"]
    module = PurePosixPath(*file.with_suffix("").parts[1:])
    tests = _named_after(module)
    while not tests and module.parent.name:
        module = module.parent
        tests = [f"tests/{module}"] if (ROOT / "tests" / module).is_dir() else _named_after(module)
    tests = tests or ["tests/base", "tests/test_layout.py"]
    return tests if file.suffix == ".py" else [*tests, "tests/test_packaging.py"]


def _tests_that_import(file: PurePosixPath) -> list[str]:
    """Return the tests that import a module of tests, directly or through other modules of tests."""
    if file.suffix != ".py":
        return []
    imports = _imports_between_tests()
    affected: set[PurePosixPath] = {file}
    while added := {path for path, names in imports.items() if names & set(map(_module_name, affected))} - affected:
        affected |= added
    return sorted(path.as_posix() for path in affected if path.name.startswith("test_"))


@cache
def _imports_between_tests() -> dict[PurePosixPath, set[str]]:
    """Return the modules of tests that each file of tests imports; `from a import b` counts as a and as a.b."""
    imports: dict[PurePosixPath, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        names = {node.module for node in nodes} | {f"{node.module}.{a.name}" for node in nodes for a in node.names}
        imports[PurePosixPath(path.relative_to(ROOT).as_posix())] = {
            name for name in names if name.startswith("tests.")
        }
    return imports


def _module_name(file: PurePosixPath) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def _nearest_folder(folder: PurePosixPath) -> str:
    """Return the folder, or the nearest one above it, that has tests in it or below it."""
    while folder.name != "tests" and not any((ROOT / folder).rglob("test_*.py")):
        folder = folder.parent
    return folder.as_posix()


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
