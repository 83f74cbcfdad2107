"""The table of heads: every way computes the same thing, memory is counted exactly, and what cannot run says why."""

import functools
import json
import os
import sys

import pytest
import torch

from grpo_lab.bench import __main__ as command
from grpo_lab.bench import head, process
from grpo_lab.rollout import score

CPU = torch.device("cpu")
SETUP = ("cpu", "fp32", 3, None)


@pytest.mark.parametrize("method", [name for name in head.METHODS if name != "plain"])
def test_the_heads_compute_the_same_gradients(method, monkeypatch):
    if method in head.PACKAGE:
        pytest.importorskip(head.PACKAGE[method])
    monkeypatch.setattr(head, "ROW", 8)
    monkeypatch.setattr(score, "LOGITS_AT_ONCE", 4 * 50 * 5)  # chunks of 5 tokens
    inputs = head.make_inputs(24, CPU, torch.float32, vocabulary=50, width=6)
    assert inputs[0].shape == (3, 8, 6)
    want = head.gradients(head.plain, inputs)
    for got, wanted in zip(head.gradients(getattr(head, method), inputs), want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def head_stub(module, spec):
    if spec["method"] == "plain" and spec["tokens"] > 512:
        raise MemoryError
    return {"seconds": spec["tokens"] / 1000, "memory": 2**20 * len(spec["method"])}


def test_what_cannot_run_says_why(monkeypatch, capsys):
    monkeypatch.setattr(head, "is_installed", lambda package: package != "liger_kernel")
    report = head.compare([1024, 512], *SETUP, run=head_stub)
    table = head.table(report).splitlines()
    assert table[1].split() == ["tokens", *head.METHODS]
    assert table[2].split()[0] == "512" and table[2].count("not installed") == 1
    assert "0.512 s (1.00) 5 MiB (1.00)" in table[2] and "0.512 s (1.00) 7 MiB (1.40)" in table[2]
    assert table[3].split()[0] == "1024" and "out of memory" in table[3] and "1.024 s 7 MiB" in table[3]
    assert {cell["method"] for cell in report["cells"] if "missing" not in cell} == {"plain", "chunked", "trl"}


# --- processes ------------------------------------------------------------------------------------------------------


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
    module = worker("spec | {'pid': os.getpid(), 'in torch': __import__('torch').get_num_threads()}")
    answer = process.run_worker(module, {"tokens": 8, "threads": 3})
    assert answer.pop("pid") != os.getpid() and answer == {"tokens": 8, "threads": 3, "in torch": 3}


def test_a_worker_that_fails_says_how(worker):
    with pytest.raises(RuntimeError, match=r"small_worker ended with exit code 1:(?s:.*)KeyError: 'tokens'"):
        process.run_worker(worker("spec['tokens']"), {})


killed = pytest.param("os.kill(os.getpid(), 9)", marks=pytest.mark.skipif(os.name != "posix", reason="no signals"))


@pytest.mark.parametrize("end", [killed, "{}['CUDA out of memory']"])
def test_a_worker_that_wants_too_much_memory_is_told_apart(worker, end):
    with pytest.raises(MemoryError, match="small_worker ended with exit code"):
        process.run_worker(worker(end), {})


def test_head_prints_the_table_and_writes_all_of_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(head, "compare", functools.partial(head.compare, run=head_stub))
    file = tmp_path / "report.json"
    command.main(f"--head --tokens 256 512 --repeats 2 --threads 1 --json {file.as_posix()}".split())
    report = json.loads(file.read_text(encoding="utf-8"))
    assert capsys.readouterr().out.strip() == head.table(report)
    assert [cell["tokens"] for cell in report["cells"]] == [256] * 4 + [512] * 4
    assert report["setup"] == {"device": "cpu", "dtype": "fp32", "repeats": 2, "threads": 1}
