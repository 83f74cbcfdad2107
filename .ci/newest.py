"""Parity and notebooks on the newest versions that pyproject.toml allows; where they fail, the package that broke them.

    python .ci/newest.py        in an environment of its own, with `pip install -e ".[dev]"` and no lock

Each package that differs from requirements-dev.lock is put back to its locked version, by itself; if what failed passes
then, the package is named. (It is put forward again afterwards, so that each is tried alone.)
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
    """Name -> version, of the lines of a lock or of `pip freeze`."""
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def differing(installed: dict[str, str], locked: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Name -> (installed, locked), of the packages that are in both in two versions."""
    return {
        name: (version, locked[name]) for name, version in installed.items() if locked.get(name, version) != version
    }


def culprits(changed: dict[str, tuple[str, str]], put: Callable[[str, str], bool], passes: Callable[[], bool]) -> list:
    """The packages of which each, put back by itself, mends what failed; put(name, version) says whether it could."""
    found = []
    for name, (newest, locked) in changed.items():
        if put(name, locked):
            found += [name] if passes() else []
            put(name, newest)
    return found


def pip(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, encoding="utf-8")


def run(*words: str) -> bool:
    environment = os.environ | {"GRPO_LAB_PROFILE": "fast", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *words], cwd=ROOT, env=environment).returncode == 0


def main() -> int:
    failed = [tests for tests in TESTS if not run(*tests)]
    lock = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    changed = differing(versions(pip("freeze").stdout), versions(lock))
    print("newer than the lock:", *(f"{name} {new} ({old})" for name, (new, old) in changed.items()), sep="\n  ")
    if not failed:
        return 0

    def put(name: str, version: str) -> bool:
        return pip("install", "--no-deps", f"{name}=={version}").returncode == 0

    named = culprits(changed, put, lambda: all(run("--last-failed", *tests) for tests in failed))
    print("what broke them:", ", ".join(named) or "no package by itself; the ones above together, or Python")
    return 1


if __name__ == "__main__":
    sys.exit(main())
