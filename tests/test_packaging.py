"""The set-up is consistent: the same packages in all files, the make targets of the README, a light import."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import grpo_lab
from grpo_lab.__main__ import COMMANDS
from tests.support.scripts import load_script

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONDA_NAMES = {"pytorch": "torch"}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SYSTEMS = ("linux", "darwin", "win32")
LOCKS = {"requirements.lock": ("notebooks",), "requirements-dev.lock": ()}  # extras in each lock; none means all
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def declared(*extras: str) -> dict[str, Requirement]:
    """Return the requirements of pyproject.toml by name, with the given extras, or with all extras if none is given."""
    project = PYPROJECT["project"]
    optional = project["optional-dependencies"]
    requirements, names = [Requirement(line) for line in project["dependencies"]], list(extras or optional)
    for extra in names:  # the list grows, because an extra may include others
        for requirement in map(Requirement, optional[extra]):
            names += [name for name in requirement.extras if requirement.name == project["name"] and name not in names]
            requirements.append(requirement)
    return {canonicalize_name(r.name): r for r in requirements if r.name != project["name"]}


def locked(name: str) -> list[Requirement]:
    return [Requirement(line) for line in read(name).splitlines() if not line.startswith("#")]


def conda() -> dict[str, SpecifierSet]:
    """Return the bounds of the packages in environment.yml, from conda-forge and from pip."""
    entries = yaml.safe_load(read("environment.yml"))["dependencies"]
    from_conda = {}
    for entry in entries:
        if isinstance(entry, str):
            name, _, bounds = entry.partition(" ")
            from_conda[CONDA_NAMES.get(name, name)] = SpecifierSet(bounds)
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    from_pip = {canonicalize_name(r.name): r.specifier for r in (Requirement(line) for line in pip if line != "-e .")}
    assert not set(from_conda) & set(from_pip)
    return from_conda | from_pip


# ---- one set of packages, four files


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_is_exact_and_names_no_host_or_cuda_package(lock: str) -> None:
    for line in read(lock).splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+)?", line), line
    assert not re.search(r"://|--hash|index-url|find-links", read(lock))
    names = {r.name for r in locked(lock)}
    assert not [name for name in names if name.startswith(("nvidia-", "cuda-"))]
    assert not names & set(PYPROJECT["tool"]["uv"]["pip"]["no-emit-package"])


def applies(requirement: Requirement, python: str, system: str) -> bool:
    versions = {"python_version": python, "python_full_version": f"{python}.0"}
    machine = {"sys_platform": system, "os_name": "nt" if system == "win32" else "posix"}
    return requirement.marker is None or requirement.marker.evaluate(versions | machine)


@pytest.mark.parametrize(("lock", "extras"), LOCKS.items())
def test_a_lock_satisfies_pyproject_on_each_system_and_python(lock: str, extras: tuple[str, ...]) -> None:
    for python, system in itertools.product(PYTHONS, SYSTEMS):
        on_this_system = [r for r in locked(lock) if applies(r, python, system)]
        pinned = {r.name: next(iter(r.specifier)).version for r in on_this_system}
        assert len(pinned) == len(on_this_system), (python, system, "a package is locked twice")
        needed = {name: r for name, r in declared(*extras).items() if applies(r, python, system)}
        assert not set(needed) - set(pinned)
        assert not [f"{name} {pinned[name]}" for name, r in needed.items() if not r.specifier.contains(pinned[name])]


def test_readers_get_what_developers_have_and_nothing_for_tests_or_teachers() -> None:
    readers, developers = ({r.name: str(r.specifier) for r in locked(lock)} for lock in LOCKS)
    assert readers.items() <= developers.items()
    assert not {"playwright", "trl", "pytest", "ruff", "mypy"} & set(readers)


def test_conda_has_what_readers_get_within_the_same_bounds() -> None:
    in_conda = conda()
    assert in_conda.pop("pip") == SpecifierSet()
    python = in_conda.pop("python")
    assert all(python.contains(f"{version}.5") for version in PYTHONS)
    assert in_conda == {name: r.specifier for name, r in declared("notebooks").items()}
    environment = yaml.safe_load(read("environment.yml"))
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert environment["dependencies"][-1]["pip"][-1] == "-e ."


def test_the_range_of_python_is_the_same_everywhere() -> None:
    first, last = (tuple(map(int, python.split("."))) for python in (PYTHONS[0], PYTHONS[-1]))
    bounds = SpecifierSet(f">={PYTHONS[0]},<{last[0]}.{last[1] + 1}")
    project = PYPROJECT["project"]
    assert SpecifierSet(project["requires-python"]) == conda()["python"] == bounds
    prefix = "Programming Language :: Python :: "
    assert [c.removeprefix(prefix) for c in project["classifiers"] if c.startswith(prefix)] == [*PYTHONS]
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + "".join(map(str, first))
    makefile = read("Makefile")
    assert f"not {first} <= sys.version_info[:2] <= {last}" in makefile
    assert f"--python-version {PYTHONS[0]} " in makefile, "of the locks"
    assert set(re.findall(r"Python (3\.\d+) to (3\.\d+)", makefile)) == {(PYTHONS[0], PYTHONS[-1])}
    for name in ("README.md", "README.zh-CN.md", "docs/install.md", "docs/install.zh-CN.md"):
        ranges = re.findall(r"Python (3\.\d+)(?: (?:to|到) (3\.\d+))?", read(name))
        assert set(ranges) == {(PYTHONS[0], PYTHONS[-1])}, name
    workflows = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    tested = re.findall(r"python-version: \"([\d.]+)\"|\bpython: (\[.*\])", workflows)
    used = {python for single, several in tested for python in [single, *yaml.safe_load(several or "[]")] if python}
    assert {PYTHONS[0], PYTHONS[-1]} <= used <= {*PYTHONS}
    (container,) = re.findall(r"^FROM python:([\d.]+)", read("Dockerfile"), re.MULTILINE)
    assert container in PYTHONS
    assert f"sys.version_info < {first}" in read("grpo_lab/course/release/gradescope.py")


def test_bounds_have_an_upper_end_and_the_parity_engines_are_exact() -> None:
    open_ended = [name for name, r in declared().items() if not re.search(r"<|==", str(r.specifier))]
    assert open_ended == ["setuptools"]
    for name, exact in {"trl": "1.16.0", "liger-kernel": "0.8.5"}.items():
        assert declared()[name].specifier == SpecifierSet(f"=={exact}")


# ---- a lean package

ABSENT = ["IPython", "ipywidgets", "ipykernel", "jupyterlab", "jupytext", "nbformat", "nbclient", "matplotlib"]
ABSENT += ["tensorboard", "beartype", "pytest", "hypothesis", "trl", "liger_kernel", "datasets", "accelerate"]
ABSENT += ["math_verify", "playwright", "openai", "fastapi", "uvicorn", "babel", "gguf", "psutil", "torchao", "peft"]
IMPORT_ALL = f"""
import importlib, pkgutil, sys
from importlib.machinery import PathFinder

class WithoutThese:
    find_distributions = staticmethod(PathFinder.find_distributions)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {ABSENT} else PathFinder.find_spec(name, path, target)

sys.meta_path = [WithoutThese() if finder is PathFinder else finder for finder in sys.meta_path]
import grpo_lab
from grpo_lab.__main__ import COMMANDS
assert "torch" not in sys.modules and "transformers" not in sys.modules, "import grpo_lab is not light"
for module in pkgutil.walk_packages(grpo_lab.__path__, "grpo_lab."):
    # The last two need TRL.
    if not module.name.endswith(("__main__", "train.trl.run", "train.trl.trainer")):
        importlib.import_module(module.name)

# With torch, transformers and einops alone, a machine can train.
assert grpo_lab.train.main(["--max_steps", "1", "--generation_batch_size", "16", "--output_dir", sys.argv[1]]) == 0
"""


@pytest.mark.slow
def test_every_module_imports_and_trains_without_extras_jupyter_or_test_tools(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", IMPORT_ALL, tmp_path / "out"],
        cwd=ROOT,
        capture_output=True,
    )
    assert process.returncode == 0, process.stderr.decode(errors="replace")


def build(kind: str, source: Path, target: Path) -> Path:
    """Build an "sdist" or a "wheel" of a source tree by the back end that pip and build call, and return its path."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(target)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """Copy the files of a clone, without those that tests and tools generate, and return the folder."""
    source = tmp_path_factory.mktemp("clone") / "source"
    ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "lessons")
    for name in ("grpo_lab", "notebooks", "po"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for path in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(path, source)
    return source


@pytest.fixture(scope="module")
def unpacked_sdist(tree: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", tree, folder)) as archive:
        archive.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return source


@pytest.mark.slow
def test_a_wheel_of_the_sdist_has_what_one_of_the_tree_has(tree: Path, unpacked_sdist: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "sdist").mkdir()
    of_tree, of_sdist = (
        set(zipfile.ZipFile(build("wheel", source, tmp_path / name)).namelist())
        for source, name in ((tree, "tree"), (unpacked_sdist, "sdist"))
    )
    assert of_tree == of_sdist
    files = {path.relative_to(ROOT / "notebooks").as_posix() for path in (ROOT / "notebooks").rglob("*.ipynb")}
    assert {f"grpo_lab/lessons/{name}" for name in files if ".ipynb_checkpoints" not in name} <= of_sdist
    catalogues = {f"grpo_lab/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "po").glob("*/*.po")}
    of_classes = {name for name in catalogues if name.endswith("/variants.po")}
    assert catalogues - of_classes <= of_sdist and of_classes and not of_classes & of_sdist


@pytest.mark.slow
def test_a_wheel_of_the_sdist_works_in_an_empty_environment(unpacked_sdist: Path, tmp_path: Path) -> None:
    """The command copies the lessons in both languages, prints Chinese, and trains for a step."""
    built = build("wheel", unpacked_sdist, tmp_path)
    inside = set(zipfile.ZipFile(built).namelist())
    files = [path.relative_to(ROOT) for path in (ROOT / "grpo_lab").rglob("*") if path.is_file()]
    generated = ("__pycache__", "lessons", ".ipynb_checkpoints")
    assert not {path.as_posix() for path in files if not set(path.parts) & {*generated}} - inside
    assert not [name for name in inside if name.startswith(("tests/", "notebooks/"))]

    # Requirements are imported from this environment, but the package itself only from the wheel.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = next(path for path in (tmp_path / "env").glob("*/python*") if path.is_file())
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip())
    (site / "needed.pth").write_text(f"{Path(torch.__file__).parent.parent}\n", encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", built]
    subprocess.run([python, *install], cwd=tmp_path, check=True, capture_output=True, env=clean)

    def run(*arguments: str, **variables: str) -> str:
        command = [python.parent / "grpo-lab", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=clean | variables, encoding="utf-8"
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert PYPROJECT["project"]["name"].replace("-", "_") in built.name and grpo_lab.__version__ in run("--version")
    run("lessons", "mine")
    for folder in ("", "zh/"):
        for path in (ROOT / "notebooks").glob(f"{folder}*.ipynb"):
            assert (tmp_path / "mine" / folder / path.name).read_bytes() == path.read_bytes()
        assert list((tmp_path / "mine" / folder / "assignments").glob("*.ipynb"))
    assert list((tmp_path / "mine" / "runs").glob("*.json"))
    speak = "from grpo_lab.base.language import _; print(_('not right yet'))"
    done = subprocess.run(
        [python, "-c", speak], cwd=tmp_path, env=clean | {"GRPO_LAB_LANG": "zh_CN", "PYTHONUTF8": "1"},
        capture_output=True, text=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert re.search("[\u4e00-\u9fff]", done.stdout), done.stdout
    run("train", "--model", "tiny", "--max_steps", "1", "--generation_batch_size", "16", "--output_dir", "out")
    assert (tmp_path / "out" / "model.safetensors").is_file()


# ---- the targets


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess:
    if os.name == "nt" or shutil.which("make") is None:
        pytest.skip("make is for Linux and macOS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    clean["PYTHON"] = sys.executable  # otherwise make tries all installed versions of Python
    return subprocess.run(["make", *arguments], cwd=folder, env=clean, capture_output=True, text=True, encoding="utf-8")


def test_test_runs_all_but_the_long_proofs_and_test_all_runs_those_too() -> None:
    quick, everything = make("-n", "test").stdout, make("-n", "test-all").stdout
    for part in ("ruff check .", "ruff format --check .", "-m mypy"):
        assert part in quick and part in everything
    forked = " -p tests.notebooks.forked "
    on_linux, on_a_mac = (make("-n", "test", f"SYSTEM={name}").stdout for name in ("Linux", "Darwin"))
    assert forked in on_linux and forked not in on_a_mac
    assert "--nbmake" in on_a_mac and "--nbmake" in everything
    assert ' -m "not slow" tests notebooks' in quick
    assert "not slow" not in everything and " tests;" in everything
    assert re.search("GRPO_LAB_PROFILE=full .* notebooks", everything)
    assert "make test-all" in read(".ci/run") and "export GRPO_LAB_REQUIRE_SMOLLM2=1" in read(".ci/run")


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """Make a clone whose .venv has a script in place of Python, and return its folder."""
    for name in ("Makefile", "requirements.lock", "requirements-dev.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\ncase "$*" in *"${FAIL:-nothing}"*) exit 2;; esac\n', encoding="utf-8")
    python.chmod(0o755)
    return tmp_path


def test_set_up_says_what_python_it_wants_and_installs_a_chosen_torch_first(fresh: Path) -> None:
    for python in ("PYTHON=", "PYTHON=false"):
        done = make("setup", python, folder=fresh)
        assert done.returncode != 0 and "make setup PYTHON=/path/to/python" in done.stderr
    done = make("setup", "TORCH_BACKEND=cpu", f"PYTHON={sys.executable}", "FAIL=uv pip", folder=fresh)
    assert done.returncode != 0 and "does not reach: take plain `make lab`" in done.stderr
    lines = make("-n", "setup", "TORCH_BACKEND=cpu", folder=fresh).stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if "--torch-backend=cpu" in line)
    assert first < next(i for i, line in enumerate(lines) if "-r requirements.lock" in line)


# ---- what is written down works


def code_of(name: str) -> str:
    return "\n".join(re.findall(r"```[a-z]*\n(.*?)```", read(name), re.DOTALL))


def test_documents_name_only_targets_commands_and_files_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    for name in DOCUMENTS:
        assert set(re.findall(r"\bmake ([a-z-]+)", code_of(name))) <= targets, name
        for module in set(re.findall(r"python -m (grpo_lab[.\w]*)", read(name))):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), (name, module)
        for command in set(re.findall(r"grpo-lab ([a-z]+)", read(name))):
            assert command in COMMANDS, (name, command)
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", read(name)):
            assert (ROOT / name).parent.joinpath(link).exists(), (name, link)


def test_images_and_links_of_the_readme_work_on_an_index() -> None:
    """On an index the README has no files beside it, so its links are addresses of existing files in the repository."""
    readme, repository = load_script("setup.py").readme_for_an_index(), PYPROJECT["project"]["urls"]["Homepage"]
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", readme)
    assert len(links) == len(re.findall(r"\]\(", read("README.md"))) > 20
    for image, link in links:
        assert link.startswith(("https://", "http://", "#")), link
        folder, _, path = link.removeprefix(f"{repository}/").partition("/main/")
        if link.startswith(f"{repository}/{folder}/main/"):
            assert folder == ("raw" if image else "blob") and (ROOT / path.partition("#")[0]).exists(), link
    assert readme.count("](") == read("README.md").count("](") and "notebooks/images/first_run.png)" in readme


def test_the_version_is_the_same_everywhere() -> None:
    assert f"version: {grpo_lab.__version__}\n" in read("CITATION.cff")
    assert json.loads(read(".zenodo.json"))["version"] == grpo_lab.__version__
    release = read("CHANGELOG.md").partition(f"## {grpo_lab.__version__}\n")[2].partition("\n## ")[0]
    assert 0 < release.strip().count("\n") < 40, "a release in 40 lines, by who is concerned"


def test_the_page_of_what_was_run_where_is_that_of_the_records() -> None:
    script = load_script("docs/ran_where.py")
    assert read("docs/ran-where.md") == script.page(), "python docs/ran_where.py writes it anew"


def test_the_weekly_job_names_the_package_that_broke_what_failed() -> None:
    newest = load_script(".ci/newest.py")
    lock = newest.versions(read("requirements-dev.lock"))
    assert lock["einops"] and lock["math-verify"]
    changed = newest.differing(newest.versions("Einops==99\nmath_verify==98\nown==1\nold==1\n"), lock | {"old": "1"})
    assert changed == {"einops": ("99", lock["einops"]), "math-verify": ("98", lock["math-verify"])}
    installed = {name: new for name, (new, _) in changed.items()}
    install = lambda name, version: installed.__setitem__(name, version) is None  # noqa: E731
    assert newest.culprits(changed, install, lambda: installed["einops"] == lock["einops"]) == ["einops"]
    assert newest.culprits(changed, install, lambda: False) == [] and installed == {"einops": "99", "math-verify": "98"}
    workflow = yaml.safe_load(read(".github/workflows/newest.yml"))
    assert "requirements" not in str(workflow) and ".ci/newest.py" in str(workflow)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("language", "page"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh/00_start_here"), ({"LANG": "en_GB.UTF-8"}, "00_start_here"),
        ({"LANG": "zh_CN.UTF-8", "LESSON_LANG": "en"}, "00_start_here"), ({"LESSON_LANG": "zh_CN"}, "zh/00_start_here"),
    ],
)  # fmt: skip
def test_make_lab_opens_the_lessons_of_the_readers_language(language, page):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "GRPO_LAB_LANG"))}
    command = ["make", "-n", "lab", "PYTHON=python3"]
    output = subprocess.run(command, cwd=ROOT, env=clean | language, capture_output=True, text=True, check=True).stdout
    assert f"/lab/tree/notebooks/{page}.ipynb" in output
