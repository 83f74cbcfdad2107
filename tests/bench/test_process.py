"""A measurement runs in a process of its own, whose peak memory is read as the system reports it."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grpo_lab.base.checks import InputPackageError
from grpo_lab.bench.process import peak_memory, run_in_process


def process_facts(spec: dict) -> dict:
    return {"pid": os.getpid(), "threads": torch.get_num_threads(), "tokens": spec["tokens"]}


@pytest.mark.slow
def test_a_measurement_runs_in_its_own_process_and_reports_failure():
    answer = run_in_process(process_facts, {"tokens": 8}, threads=3)
    assert answer.pop("pid") != os.getpid() and answer == {"tokens": 8, "threads": 3}
    with pytest.raises(KeyError, match="tokens"):
        run_in_process(process_facts, {})


def test_on_linux_the_peak_is_that_of_this_process_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "is_file", lambda path: str(path) == "/proc/self/status")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "Name:\tpython: a\nVmPeak:\t  99 kB\nVmHWM:\t  12 kB\n")
    assert peak_memory() == 12 * 1024


@pytest.mark.parametrize(("platform", "unit"), [("darwin", 1), ("freebsd", 1024)])
def test_without_proc_the_peak_is_that_of_getrusage_in_its_unit(platform, unit, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=7))
    assert peak_memory() == 7 * unit


def test_peak_memory_on_windows_is_measured_by_psutil_whose_absence_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    memory = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=5))
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(Process=lambda: memory))
    assert peak_memory() == 5
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(InputPackageError, match="peak memory is measured by psutil on Windows, which is not installed"):
        peak_memory()
