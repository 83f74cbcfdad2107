"""The doctor on simulated machines: its findings, and the exact commands that it names."""

import importlib.metadata
import subprocess
import sys
from collections import namedtuple

import pytest
import torch

from grpo_lab import doctor as doctor_module
from grpo_lab.doctor import CheckResult, Report, doctor
from grpo_lab.models import loading
from grpo_lab.sandbox import isolation


@pytest.fixture(autouse=True)
def laptop(monkeypatch):
    """A laptop without a GPU, with an environment called "py"."""
    monkeypatch.setattr(doctor_module, "PYTHON", "py")
    monkeypatch.setattr(doctor_module, "CONDA", False)
    monkeypatch.setattr(doctor_module, "find_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_doctor_finds_no_fault_on_this_machine():
    report = doctor()
    assert not report.count("fail"), report
    assert report["packages"].finding.startswith(f"Python {'.'.join(map(str, sys.version_info[:3]))}, and all packages")
    assert "everything runs on the CPU" in report["NVIDIA GPU"].finding


def test_doctor_names_missing_packages_with_their_install_command(monkeypatch, bare_machine):
    monkeypatch.setitem(sys.modules, "psutil", None)
    check = doctor()["machine"]
    assert check.status == "warn" and "`py -m pip install -r requirements.lock`" in check.remedy
    monkeypatch.setattr(doctor_module, "CONDA", True)
    assert "`conda env update -f environment.yml`" in doctor()["machine"].remedy
    monkeypatch.setitem(sys.modules, "torch", None)
    assert doctor()["NVIDIA GPU"].status == "fail"
    monkeypatch.setattr(loading, "_load_model", None)
    assert doctor()["tiny model"].status == "fail"


def test_doctor_lists_missing_and_untested_packages(monkeypatch):
    assert doctor_module.check_packages().status == "ok"
    for requirement, status, version in [
        ("nowhere-to-be-found>=1", "fail", "No package metadata was found for nowhere-to-be-found"),
        (f"torch>{torch.__version__.split('+')[0]}", "warn", f"torch {torch.__version__} (wanted: >"),
        ("nothing>1; extra == 'test'", "ok", ""),
    ]:
        monkeypatch.setattr(importlib.metadata, "requires", lambda name, requirement=requirement: [requirement])
        check = doctor()["packages"]
        assert check.status == status and version in check.finding


def test_doctor_names_a_gpu_that_torch_does_not_use(monkeypatch):
    monkeypatch.setattr(doctor_module, "find_gpu", lambda: "NVIDIA GeForce RTX 4060 (driver 560.94)")
    for cuda, detail, remedy in [
        (None, "this torch has no CUDA", "--reinstall-package torch --torch-backend=auto"),
        ("13.0", "driver is older than torch's CUDA", "Update the NVIDIA driver"),
    ]:
        monkeypatch.setattr(torch.version, "cuda", cuda)
        check = doctor_module.check_gpu()
        assert check.status == "warn" and detail in check.finding and remedy in check.remedy


def test_doctor_names_a_gpu_with_the_command_that_plans_for_it(monkeypatch):
    card = namedtuple("Card", "name total_memory")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card("NVIDIA H200", 140 * 2**30))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (130 * 2**30, 140 * 2**30))
    check = doctor_module.check_gpu()
    assert check.finding == "NVIDIA H200, 140.0 GiB, 130.0 of them free" and check.status == "ok"
    assert "`py -m grpo_lab.memory --budget 130.0`" in check.remedy


def test_the_report_reads_the_same_in_a_shell_and_in_a_notebook():
    report = Report({"a": CheckResult("warn", "x < y", "run `make this` now"), "c": CheckResult("fail", "gone")})
    lines, page = str(report).splitlines(), report._repr_markdown_()
    assert lines[0].split() == ["warn", "a", "x", "<", "y", "->", "run", "`make", "this`", "now"]
    assert lines[1].startswith("FAIL") and page.endswith(lines[-1])
    assert r"x < y → run `make this` now |" in page
    str(doctor()).encode("ascii")  # so that consoles of every code page can show it


real_find_gpu = doctor_module.find_gpu


def test_doctor_finds_the_gpu_without_torch(monkeypatch):
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: "Tesla T4, 550.54\nTesla T4, 550.54\n")
    assert real_find_gpu() == "Tesla T4 (driver 550.54)"
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: subprocess.run("no such program"))
    assert real_find_gpu() is None


def test_the_exit_status_tells_whether_something_has_to_be_fixed(monkeypatch, capsys):
    for status, code in (("warn", 0), ("fail", 1)):
        monkeypatch.setattr(doctor_module, "CHECKS", {"all": lambda status=status: CheckResult(status, "x")})
        assert doctor_module.main([]) == code and "all" in capsys.readouterr().out


def test_models_are_named_with_their_source_or_download_command(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path))
    for variable in ("MODELSCOPE_CACHE", "HF_HUB_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    check = doctor_module.check_models()
    assert check.status == "ok" and check.finding == "none but the tiny one"
    assert "`py -m grpo_lab.models get qwen` fetches 478 MB" in check.remedy and "get smollm2" in check.remedy
    folder = tmp_path / "qwen-0.5b-instruct"
    folder.mkdir()
    (folder / "config.json").touch()
    (folder / "README.md").write_text("---\nsource: Qwen2-0.5B-Instruct, from mine.gguf\n---\n", encoding="utf-8")
    check = doctor_module.check_models()
    assert check.finding == "qwen (Qwen2-0.5B-Instruct, from mine.gguf)" and "get qwen" not in check.remedy


@pytest.mark.parametrize(
    ("platform", "program", "sandbox", "status", "finding", "remedy"),
    [
        ("linux", "/usr/bin/bwrap", ("bubblewrap", ""), "ok", "bubblewrap, where `--tools python`", ""),
        ("linux", None, ("", "bubblewrap: cannot be started"), "ok", "none (bubblewrap: cannot", "`apt install bubble"),
        ("linux", "/usr/bin/bwrap", ("", "bubblewrap: exit code 1"), "warn", "are refused", "needs user namespaces"),
        ("win32", None, ("", "docker: cannot be started"), "ok", "grading needs --trust", "`docker build -t grpo-lab-"),
        ("darwin", None, ("docker", "bubblewrap: cannot"), "ok", "docker, where `--tools python`", ""),
    ],
)
def test_a_sandbox_is_named_and_where_there_is_none_what_is_refused(
    platform, program, sandbox, status, finding, remedy, monkeypatch
):
    monkeypatch.setattr(isolation, "available_sandbox", lambda: sandbox)
    monkeypatch.setattr(doctor_module.shutil, "which", lambda name: program)
    monkeypatch.setattr(doctor_module.sys, "platform", platform)
    check = doctor_module.check_sandbox()
    assert check.status == status and finding in check.finding and remedy in check.remedy
    assert bool(check.remedy) == (not sandbox[0])
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    assert "沙箱" in repr(Report({"sandbox": check})) and "作业" in str(check)
    assert f"`{check.remedy.split('`')[1]}`" in str(check) if "`" in check.remedy else True
