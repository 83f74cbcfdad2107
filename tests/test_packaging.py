"""The set-up holds together: one set of packages in three files, targets as the README says, a lean import."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONDA_NAMES = {"pytorch": "torch"}
PYTHONS = ("3.11", "3.12", "3.13")
SYSTEMS = ("linux", "darwin", "win32")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def declared() -> dict[str, Requirement]:
    """Everything that pyproject.toml asks for by name, extras included."""
    project = PYPROJECT["project"]
    lines = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): r for r in requirements if r.name != project["name"]}


def locked() -> list[Requirement]:
    return [Requirement(line) for line in read("requirements.lock").splitlines() if not line.startswith("#")]


def conda() -> tuple[dict[str, SpecifierSet], dict[str, SpecifierSet]]:
    """What environment.yml takes from conda-forge, and what from pip."""
    entries = yaml.safe_load(read("environment.yml"))["dependencies"]
    from_conda = {}
    for entry in entries:
        if isinstance(entry, str):
            name, _, bounds = entry.partition(" ")
            from_conda[CONDA_NAMES.get(name, name)] = SpecifierSet(bounds)
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    requirements = [Requirement(line) for line in pip if line != "-e ."]
    return from_conda, {canonicalize_name(r.name): r.specifier for r in requirements}


# ---- one set of packages, three files


def test_the_lock_has_exact_versions_and_names_no_host() -> None:
    for line in read("requirements.lock").splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+)?", line), line
    assert not re.search(r"://|--hash|index-url|find-links", read("requirements.lock"))


def test_the_lock_leaves_the_cuda_packages_to_torch() -> None:
    names = {r.name for r in locked()}
    assert not [name for name in names if name.startswith(("nvidia-", "cuda-"))]
    assert not names & set(PYPROJECT["tool"]["uv"]["pip"]["no-emit-package"])


def test_every_package_is_locked_once_for_each_system_and_python() -> None:
    for python in PYTHONS:
        for system in SYSTEMS:
            names = [r.name for r in locked() if applies(r, python, system)]
            assert len(names) == len(set(names)), (python, system)


def applies(requirement: Requirement, python: str, system: str) -> bool:
    os_name = "nt" if system == "win32" else "posix"
    place = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": system, "os_name": os_name}
    return requirement.marker is None or requirement.marker.evaluate(place)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_satisfies_pyproject(python: str, system: str) -> None:
    pinned = {r.name: next(iter(r.specifier)).version for r in locked() if applies(r, python, system)}
    wanted = {name: r for name, r in declared().items() if applies(r, python, system)}
    assert not set(wanted) - set(pinned)
    assert not [f"{name} {pinned[name]}" for name, r in wanted.items() if not r.specifier.contains(pinned[name])]


def test_conda_has_the_same_packages_within_the_same_bounds() -> None:
    from_conda, from_pip = conda()
    assert from_conda.pop("pip") == SpecifierSet()
    assert all(from_conda["python"].contains(f"{python}.5") for python in PYTHONS)
    assert not from_conda.pop("python").contains("3.10.9")
    assert not set(from_conda) & set(from_pip)
    assert from_conda | from_pip == {name: r.specifier for name, r in declared().items()}


def test_conda_installs_this_package_and_only_from_conda_forge() -> None:
    environment = yaml.safe_load(read("environment.yml"))
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert environment["dependencies"][-1]["pip"][-1] == "-e ."


def test_the_parity_engines_are_exact_everywhere() -> None:
    for name, exact in {"trl": "1.16.0", "liger-kernel": "0.8.5"}.items():
        assert declared()[name].specifier == SpecifierSet(f"=={exact}") == conda()[1][name]


def test_what_is_installed_is_within_bounds() -> None:
    here = [r for r in declared().values() if r.marker is None or r.marker.evaluate()]
    assert not [
        f"{r.name} {version(r.name)}" for r in here if not r.specifier.contains(version(r.name), prereleases=True)
    ]


def test_every_bound_has_an_upper_end_or_is_a_build_tool() -> None:
    open_ended = [name for name, r in declared().items() if not re.search(r"<|==", str(r.specifier))]
    assert open_ended == ["setuptools"]


# ---- a lean package

ABSENT = [
    "IPython",
    "ipywidgets",
    "ipykernel",
    "jupyterlab",
    "jupytext",
    "nbformat",
    "nbclient",
    "matplotlib",
    "tensorboard",
]
ABSENT += [
    "beartype",
    "pytest",
    "hypothesis",
    "trl",
    "liger_kernel",
    "datasets",
    "accelerate",
    "psutil",
    "math_verify",
    "playwright",
]
IMPORT_ALL = f"""
import importlib, pkgutil, sys
from importlib.machinery import PathFinder

class WithoutThese:
    find_distributions = staticmethod(PathFinder.find_distributions)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {ABSENT} else PathFinder.find_spec(name, path, target)

sys.meta_path = [WithoutThese() if finder is PathFinder else finder for finder in sys.meta_path]
import grpo_lab
assert "torch" not in sys.modules and "transformers" not in sys.modules, "import grpo_lab is not light"
for module in pkgutil.walk_packages(grpo_lab.__path__, "grpo_lab."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.mark.slow
def test_every_module_imports_without_jupyter_plots_or_test_tools() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", IMPORT_ALL], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def test_a_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    leave_out = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    shutil.copytree(ROOT / "grpo_lab", tmp_path / "grpo_lab", ignore=leave_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "wheels", "."]
    subprocess.run(wheel, cwd=tmp_path, check=True, capture_output=True)
    (built,) = (tmp_path / "wheels").glob("*.whl")
    inside = set(zipfile.ZipFile(built).namelist())
    files = {p.relative_to(tmp_path).as_posix() for p in (tmp_path / "grpo_lab").rglob("*") if p.is_file()}
    assert not files - inside
    assert not [name for name in inside if name.startswith(("tests/", "notebooks/"))]


# ---- the targets


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess:
    if os.name == "nt" or shutil.which("make") is None:
        pytest.skip("make is for Linux and macOS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=folder, env=clean, capture_output=True, text=True, encoding="utf-8")


def test_lab_opens_the_first_notebook() -> None:
    assert re.search(r"-m jupyterlab .*=/lab/tree/notebooks/00_start_here\.ipynb", make("-n", "lab").stdout)


def test_test_runs_all_but_the_long_proofs_and_test_all_runs_those_too() -> None:
    quick, everything = make("-n", "test").stdout, make("-n", "test-all").stdout
    for part in ("ruff check .", "ruff format --check .", "--nbmake", " tests notebooks"):
        assert part in quick and part in everything
    assert quick.replace(' -m "not slow"', "") == everything
    assert "make test-all" in read(".ci/run") and "export GRPO_LAB_REQUIRE_SMOLLM2=1" in read(".ci/run")


def test_the_long_proofs_run_every_night_on_linux() -> None:
    job = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]["test-all"]
    assert job["runs-on"] == "ubuntu-latest" and "make test-all" in job["steps"][-1]["run"]


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A clone in which a pretended .venv was set up."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "$@" >> asked\ncase "$*" in *"${FAIL:-nothing}"*) exit 2;; esac\n', encoding="utf-8"
    )
    python.chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_set_up_costs_nothing_the_second_time_and_follows_the_lock(fresh: Path) -> None:
    assert make("-q", "setup", folder=fresh).returncode == 1
    first = make("setup", f"PYTHON={sys.executable}", folder=fresh)
    assert first.returncode == 0, first.stderr
    assert "-r requirements.lock" in first.stdout and "--no-deps --no-build-isolation -e ." in first.stdout
    assert make("-q", "setup", folder=fresh).returncode == 0
    now = (fresh / ".venv" / ".setup-done").stat().st_mtime
    for name in ("requirements.lock", "pyproject.toml"):
        os.utime(fresh / name, (now + 10, now + 10))
        assert make("-q", "setup", folder=fresh).returncode == 1, name
        os.utime(fresh / name, (now - 10, now - 10))
    assert make("-q", "setup", folder=fresh).returncode == 0


def test_the_last_step_of_set_up_fetches_the_real_model_and_only_a_wrong_file_stops_it(
    fresh: Path, monkeypatch
) -> None:
    """That being offline is no failure to the command, tests/models/test_smollm2.py shows."""
    stamp, asked = fresh / ".venv" / ".setup-done", fresh / "asked"
    monkeypatch.setenv("FAIL", "get smollm2")
    assert make("setup", f"PYTHON={sys.executable}", folder=fresh).returncode != 0 and not stamp.exists()
    monkeypatch.delenv("FAIL")
    assert make("setup", f"PYTHON={sys.executable}", folder=fresh).returncode == 0 and stamp.exists()
    lines = asked.read_text(encoding="utf-8").splitlines()
    assert lines[-1] == "-m grpo_lab.models get smollm2 --optional" and lines.count(lines[-1]) == 2
    assert make("setup", folder=fresh).returncode == 0
    assert asked.read_text(encoding="utf-8").splitlines() == lines, "nothing is tried again"


def test_without_a_suitable_python_set_up_says_what_to_do(fresh: Path) -> None:
    for python in ("PYTHON=", "PYTHON=false"):
        done = make("setup", python, folder=fresh)
        assert done.returncode != 0 and "make setup PYTHON=/path/to/python" in done.stderr


def test_a_chosen_torch_is_installed_before_the_rest(fresh: Path) -> None:
    lines = make("-n", "setup", "TORCH_BACKEND=cpu", folder=fresh).stdout.splitlines()
    torch = next(i for i, line in enumerate(lines) if "--torch-backend=cpu" in line)
    assert torch < next(i for i, line in enumerate(lines) if "-r requirements.lock" in line)


# ---- what is written down works


def code_of(name: str) -> str:
    return "\n".join(re.findall(r"```[a-z]*\n(.*?)```", read(name), re.DOTALL))


def test_the_readme_names_only_targets_and_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", code_of("README.md"))) <= targets
    for module in set(re.findall(r"python -m (grpo_lab[.\w]*)", read("README.md"))):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_windows_gets_the_same_steps_in_the_readme_and_in_the_workflow() -> None:
    steps = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]["test"]["steps"]
    windows = "\n".join(step["run"] for step in steps if "Windows" in str(step.get("if")))
    readme = code_of("README.md").replace("\\", "/")
    for line in windows.splitlines():
        if "ruff" not in line:
            assert line in readme, line
    assert re.search(r"-m pytest (.*)", windows)[1] in make("-n", "test").stdout


def test_the_workflow_covers_every_system_and_both_ends_of_python() -> None:
    matrix = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]["test"]["strategy"]["matrix"]
    assert {name.split("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert matrix["python"] == [PYTHONS[0], PYTHONS[-1]]


@pytest.mark.skipif(os.name == "nt", reason="a bash script")
def test_the_ci_script_is_executable_and_parses() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
