"""A measurement in a process of its own: what it answers, and what is said where it fails."""

import os
import sys

import pytest

from grpo_lab.bench import process


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """Writes the module of a worker whose measurement is that code."""

    def write(measure):
        lines = "import os\nfrom grpo_lab.bench.process import worker_main\n"
        lines += f"worker_main(lambda spec: {measure})\n"
        (tmp_path / "small_worker.py").write_text(lines, encoding="utf-8")
        return "small_worker"

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return write


def test_a_worker_answers_from_a_process_of_its_own(worker):
    answer = process.run_worker(worker("spec | {'pid': os.getpid()}"), {"tokens": 8})
    assert answer.pop("pid") != os.getpid() and answer == {"tokens": 8}


@pytest.mark.slow
def test_torch_has_the_threads_that_the_worker_was_given(worker):
    module = worker("{'in torch': __import__('torch').get_num_threads()}")
    assert process.run_worker(module, {"threads": 3}) == {"in torch": 3}


def test_a_worker_that_fails_says_how(worker):
    with pytest.raises(RuntimeError, match=r"small_worker ended with exit code 1:(?s:.*)KeyError: 'tokens'"):
        process.run_worker(worker("spec['tokens']"), {})
