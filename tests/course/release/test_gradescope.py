"""The autograder for Gradescope, run as Gradescope runs it."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

from grpo_lab.course.__main__ import main
from grpo_lab.course.exercises import exercises_of_notebook
from tests.course.classroom import LINUX, file_name, submit


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


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="Gradescope's container is Linux")
def test_a_submission_gets_its_results(autograder, tmp_path):
    written = {
        "sequence_logprob": "def sequence_logprob(logp, mask):\n    return logp.masked_fill(~mask, 0.0).sum(dim=1)",
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
    assert set(points) == set(exercises_of_notebook("01"))
    assert points["sequence_logprob"] == exercises_of_notebook("01")["sequence_logprob"].points == results["score"]
    assert sum(test["max_score"] for test in results["tests"]) >= results["score"]
