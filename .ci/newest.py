"""Test parity and notebooks on the newest versions that pyproject.toml allows, and name the packages that break them.

    python .ci/newest.py        in an environment of its own, with `pip install -e ".[dev]"` and no lock

After a failure, each package that differs from requirements-dev.lock is installed in its locked version, one package at
a time. If the failed tests pass with it, the package is named. Its newest version is then installed again, so that each
package is tried alone.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
NBMAKE = ["-p", "nbmake.pytest_plugin", "--nbmake", "--nbmake-timeout", "300"]
TESTS = [["tests/parity"], [*NBMAKE, "--ignore", "notebooks/assignments", "notebooks"]]


def versions(text: str) -> dict[str, str]:
    """Return the version of each package that a lock or `pip freeze` lists, by the package's normalised name."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def differing(installed: dict[str, str], locked: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return the installed and the locked version of each package whose two versions differ."""
    return {
        name: (version, locked[name]) for name, version in installed.items() if locked.get(name, version) != version
    }


def culprits(
    changed: dict[str, tuple[str, str]], install: Callable[[str, str], bool], passes: Callable[[], bool]
) -> list[str]:
    """Return the packages whose locked version, installed alone, lets the failed tests pass.

    Args:
        changed: Newest and locked version of each package, as `differing` returns them.
        install: Installs a package in a version, and returns whether that was possible.
        passes: Runs the failed tests again, and returns whether they pass.
    """
    names = []
    for name, (newest, locked) in changed.items():
        if install(name, locked):
            if passes():
                names.append(name)
            install(name, newest)
    return names


def pip(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, encoding="utf-8")


def tests_pass(*arguments: str) -> bool:
    environment = os.environ | {"GRPO_LAB_PROFILE": "fast", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], cwd=ROOT, env=environment).returncode == 0


def main() -> int:
    failed = [tests for tests in TESTS if not tests_pass(*tests)]
    lock = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    changed = differing(versions(pip("freeze").stdout), versions(lock))
    print("newer than the lock:", *(f"{name} {new} ({old})" for name, (new, old) in changed.items()), sep="\n  ")
    if not failed:
        return 0

    def install(name: str, version: str) -> bool:
        return pip("install", "--no-deps", f"{name}=={version}").returncode == 0

    names = culprits(changed, install, lambda: all(tests_pass("--last-failed", *tests) for tests in failed))
    print("what broke them:", ", ".join(names) or "no package by itself; the ones above together, or Python")
    return 1


if __name__ == "__main__":
    sys.exit(main())
