"""The autograder for Gradescope: run as Gradescope runs it, on folders that look like its own."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from grpo_lab.course.__main__ import main
from grpo_lab.course.release.notebooks import of_notebook
from tests.course.right import nb01
from tests.course.submitted import LINUX, file_name, submit


@pytest.fixture(scope="module")
def autograder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradescope") / "autograder"
    assert main(["export-gradescope", str(folder), "--seed", "4711"]) == 0
    return folder


def test_the_zip_has_at_its_top_what_gradescope_looks_for(autograder):
    with zipfile.ZipFile(f"{autograder}.zip") as archive:
        names = set(archive.namelist())
    assert {"setup.sh", "run_autograder", "package/pyproject.toml", "package/grpo_lab/__init__.py"} <= names
    assert not any("__pycache__" in name or name.startswith("package/tests") for name in names)


def test_it_overwrites_nothing(autograder, tmp_path, capsys):
    assert main(["export-gradescope", str(autograder)]) == 2
    (tmp_path / "new.zip").write_text("mine")
    assert main(["export-gradescope", str(tmp_path / "new")]) == 2
    assert (tmp_path / "new.zip").read_text() == "mine" and not (tmp_path / "new").exists()
    assert "new.zip is there already" in capsys.readouterr().err


def test_it_can_be_for_one_assignment(autograder, tmp_path, capsys):
    assert "--assignment" not in (autograder / "run_autograder").read_text(encoding="utf-8")
    assert main(["export-gradescope", str(tmp_path / "new"), "--seed", "5", "--assignment", "02"]) == 0
    script = (tmp_path / "new" / "run_autograder").read_text(encoding="utf-8")
    assert "--seed 5 --assignment 02 --trust --output" in script
    assert main(["export-gradescope", str(tmp_path / "no"), "--assignment", "2"]) == 2
    assert "assignment is '2'; expected the number of one, such as 02" in capsys.readouterr().err


OLD, NEW = '[ "$1" = -c ] && exit 1; echo Python 3.10.12', "exit 0"


def program(path: Path, *lines: str) -> None:
    """A stand-in for a command, which notes how it was called."""
    log = path.parents[1] / "log"
    text = ["#!/bin/bash", f'echo "{path.name} $*" >> "{log}"', *lines]
    path.write_text("\n".join(text) + "\n", encoding="utf-8", newline="\n")
    path.chmod(0o755)


def set_up(autograder: Path, root: Path, python3: str, *, index: bool = True):
    """Run setup.sh with this python3, where the index of CPU builds is there or not."""
    own = root / "own"
    for folder in (own, root / "venv" / "bin"):
        folder.mkdir(parents=True)
    program(own / "python3", python3)
    for name in ("chmod", "apt-get"):
        program(own / name)
    refused = "" if index else '[[ "$*" == *torch-backend* ]] && exit 1'
    program(root / "venv" / "bin" / "python", refused, "echo installed: as asked")
    command = [shutil.which("bash"), str(autograder / "setup.sh")]
    env = {"AUTOGRADER_ROOT": str(root), "PATH": str(own)}
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8")
    return done, [path.read_text(encoding="utf-8") for path in (root / "log", root / "venv" / "log") if path.exists()]


@pytest.mark.skipif(not LINUX, reason="Gradescope's container is Linux")
def test_setup_takes_a_python_that_is_new_enough_or_says_what_to_choose(autograder, tmp_path):
    least = tomllib.loads((autograder / "package" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert least["requires-python"] == ">=3.11" and "(3, 11)" in (autograder / "setup.sh").read_text(encoding="utf-8")
    done, (log, pip) = set_up(autograder, tmp_path / "24.04", NEW)
    assert done.returncode == 0 and "installed: as asked" in done.stdout and "python3 -m venv" in log
    uv, torch, package = [line for line in pip.splitlines() if "pip install" in line]
    assert uv.endswith("install uv") and "--torch-backend=cpu" in torch and torch.endswith("requirements.lock torch")
    assert package.endswith("requirements.lock " + str(tmp_path / "24.04" / "source" / "package"))
    assert (autograder / "package" / "requirements.lock").is_file() and "chmod -R go-rwx" in log
    done, (_, pip) = set_up(autograder, tmp_path / "no-index", NEW, index=False)
    assert done.returncode == 0 and "the ordinary one is installed" in done.stdout and pip.count("pip install") == 3
    done, (log,) = set_up(autograder, tmp_path / "22.04", OLD)
    assert done.returncode == 1 and "-m venv" not in log
    assert "python3 is Python 3.10.12; expected 3.11 or newer: choose" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="Gradescope's container is Linux")
def test_a_submission_gets_its_results(autograder, tmp_path):
    written = {
        "sequence_logprob": nb01.sequence_by_masked_fill,
        "reinforce_loss": "def reinforce_loss(a, b):\n    1 / 0",
    }
    submit(tmp_path / "submission" / file_name("01"), "01", **written)
    own = {
        "AUTOGRADER_ROOT": str(tmp_path),
        "AUTOGRADER_PYTHON": sys.executable,
        "PYTHONPATH": str(autograder / "package"),
    }
    done = subprocess.run(
        ["bash", str(autograder / "run_autograder")], env=os.environ | own, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    points = {test["name"]: test["score"] for test in results["tests"]}
    assert set(points) == set(of_notebook("01"))
    assert points["sequence_logprob"] == of_notebook("01")["sequence_logprob"].points == results["score"]
    assert sum(test["max_score"] for test in results["tests"]) >= results["score"]
