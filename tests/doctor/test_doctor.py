"""The doctor on machines that are made up: what it finds, and the exact remedy that it names."""

import subprocess
import sys
from dataclasses import replace

import pytest

from grpo_lab.doctor import Check, Report
from grpo_lab.doctor import checks as doctor
from grpo_lab.doctor import machine as _machine
from grpo_lab.doctor.machine import Card, Machine, find_card
from tests.support.refused import refused

LAPTOP = Machine()
H200 = replace(
    LAPTOP,
    card=Card("NVIDIA H200", 139.8, "580.95"),
    torch="2.13.0+cu130",
    torch_cuda="13.0",
    cuda_works=True,
    native_bf16=True,
)


def found(machine: Machine, name: str) -> Check:
    return next(check for check in doctor.doctor(machine) if check.name == name)


def test_a_laptop_without_a_card_is_healthy() -> None:
    report = doctor.doctor(LAPTOP)
    assert report.healthy and all(check.status == "ok" for check in report)
    assert report.summary() == "Everything works."
    assert "everything runs on the CPU" in found(LAPTOP, "NVIDIA card").found
    assert ".venv/bin/python -m grpo_lab.models get smollm2" in found(LAPTOP, "SmolLM2-135M").remedy
    assert "load_policy" in found(LAPTOP, "Qwen2-0.5B").remedy and "modelscope" in found(LAPTOP, "Qwen2-0.5B").remedy


def test_a_machine_with_a_working_card_is_healthy() -> None:
    there = {"smollm2": "~/.cache/grpo_lab/x", "qwen2": "~/.cache/modelscope/models/Qwen/Qwen2-0___5B-Instruct"}
    report = doctor.doctor(replace(H200, **there))
    assert report.healthy and all(check.status == "ok" and not check.remedy for check in report)
    assert "CUDA 13.0" in found(H200, "NVIDIA card").found
    assert "natively" in found(H200, "precision").found


CARDLESS_TORCH = replace(LAPTOP, card=Card("NVIDIA GeForce RTX 4060", 8.0, "560.94"), torch="2.13.0+cpu")
WITH_UV = (
    "`.venv/bin/python -m pip install uv`, then `.venv/bin/python -m uv pip install --python .venv/bin/python "
    "--reinstall-package torch --torch-backend=auto torch==2.13.0`, then restart the kernel."
)


def test_a_card_behind_a_torch_without_cuda() -> None:
    check = found(CARDLESS_TORCH, "NVIDIA card")
    assert check.status == "warn"
    assert check.found == (
        "an NVIDIA card is present (NVIDIA GeForce RTX 4060) but this torch has no CUDA: it would stay idle"
    )
    assert check.remedy == WITH_UV
    conda = found(replace(CARDLESS_TORCH, environment="conda"), "NVIDIA card")
    assert conda.remedy == "`conda install -c conda-forge pytorch-gpu`, then restart the kernel."


def test_a_card_whose_driver_is_too_old() -> None:
    check = found(replace(CARDLESS_TORCH, torch="2.13.0", torch_cuda="13.0"), "NVIDIA card")
    assert check.status == "warn" and "driver 560.94 does not serve CUDA 13.0" in check.found
    assert check.remedy.startswith("Update the NVIDIA driver") and check.remedy.endswith(WITH_UV)


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_card_that_is_hidden(value: str) -> None:
    check = found(replace(CARDLESS_TORCH, torch_cuda="13.0", hidden_by=value), "NVIDIA card")
    assert check.status == "warn" and f"CUDA_VISIBLE_DEVICES={value!r}" in check.found
    assert check.remedy == "Unset CUDA_VISIBLE_DEVICES and start again."


def test_a_card_without_a_compiler_trains_and_is_slower() -> None:
    assert found(H200, "C compiler").found == "gcc: the 8-bit optimizer is compiled"
    check = found(replace(H200, compiler=None), "C compiler")
    assert check.status == "warn" and "a step takes longer" in check.found and "`sudo apt install gcc`" in check.remedy
    for nobody in (replace(LAPTOP, compiler=None), replace(H200, compiler=None, system="Windows")):
        assert all(check.name != "C compiler" for check in doctor.doctor(nobody))


def test_what_is_needed_for_nothing_else_is_no_fault() -> None:
    check = found(replace(LAPTOP, extras_missing=["wandb", "trl"]), "extras")
    assert check.status == "ok" and check.found.endswith(
        "wandb, for --report_to wandb; trl, for the comparison `bench --against trl`"
    )


def test_a_t4_has_no_bf16() -> None:
    t4 = replace(H200, card=Card("Tesla T4", 14.6, "580.95"), native_bf16=False)
    check = found(t4, "precision")
    assert check.status == "warn" and "Tesla T4 has no bf16" in check.found
    assert "fp16 arithmetic" in check.found and "by itself" in check.remedy
    assert found(t4, "card memory").status == "ok"


def test_a_card_of_8_gb_trains_qwen2_in_bf16_only() -> None:
    with_bf16 = replace(H200, card=Card("NVIDIA GeForce RTX 4060", 7.6, "580.95"))
    check = found(with_bf16, "card memory")
    assert check.status == "ok" and '"bf16"' in check.found and "-m grpo_lab.memory" in check.found
    check = found(replace(with_bf16, native_bf16=False), "card memory")
    assert check.status == "warn" and "7.4 GiB" in check.found and "tiny model" in check.remedy
    assert found(replace(H200, card=Card("GPU", 4.0)), "card memory").status == "warn"


def test_the_thresholds_for_cards_are_those_of_the_planner() -> None:
    from grpo_lab.config import GRPOConfig
    from grpo_lab.doctor import checks as limits
    from grpo_lab.memory import GIB, plan
    from grpo_lab.models.shapes import shape_config

    work = GRPOConfig(
        num_generations=8, generation_batch_size=8, max_completion_length=512, gradient_checkpointing=True
    )
    planned = {
        name: plan(shape_config("qwen2-0.5b"), work, prompt_length=256, precision=name)
        for name in ("bf16", "fp16", "fp32", "fp32-master")
    }
    assert planned["bf16"].fits(int(limits.SMALL_CARD_GIB * GIB))
    assert all(made.fits(int(limits.ROOMY_CARD_GIB * GIB)) for made in planned.values())
    assert not planned["fp16"].fits(int(limits.SMALL_CARD_GIB * GIB))


@pytest.mark.parametrize(
    ("change", "name", "status", "remedy"),
    [
        ({"python": (3, 9, 18)}, "Python", "fail", "`make setup PYTHON=python3.12`"),
        ({"python": (3, 11, 0)}, "Python", "ok", ""),
        ({"python": (3, 13, 9)}, "Python", "ok", ""),
        ({"python": (3, 14, 1)}, "Python", "warn", "take 3.13"),
        ({"tiny": None, "tiny_error": "clone it again"}, "tiny model", "fail", "clone it again"),
        ({"torch": None}, "torch", "fail", "`.venv/bin/python -m pip install -r requirements.lock`"),
        ({"torch_error": "libc10.so"}, "torch", "fail", "--force-reinstall"),
        ({"torch_error": "WinError 126", "system": "Windows"}, "torch", "fail", "Visual C++ Redistributable"),
        ({"transformers": None}, "transformers", "fail", "requirements.lock"),
        ({"missing": ["einops"]}, "packages", "fail", "requirements.lock"),
        ({"missing": ["einops"], "environment": "conda"}, "packages", "fail", "conda env update"),
        ({"unfit": ["torch 2.9.0 (wanted: >=2.11)"]}, "packages", "warn", "Go back"),
        ({"installed": False}, "packages", "warn", "install --no-deps -e ."),
        ({"jupyter": False}, "environment", "warn", "requirements.lock"),
        ({"wrong_venv": ".venv"}, "environment", "warn", "`make lab`"),
        ({"ram_gib": 2.0}, "memory", "warn", "one notebook at a time"),
        ({"disk_gib": 0.4}, "disk", "warn", "Free some"),
        ({"cpus": 1}, "CPU", "warn", "twice as long"),
    ],
)
def test_every_fault_has_its_remedy(change: dict, name: str, status: str, remedy: str) -> None:
    report = doctor.doctor(replace(LAPTOP, **change))
    (check,) = [check for check in report if check.name == name]
    assert check.status == status and remedy in check.remedy and report.healthy == (status != "fail")


def test_what_cannot_be_measured_is_no_fault() -> None:
    blind = replace(LAPTOP, ram_gib=None, torch_threads=None, card=Card("an NVIDIA card"))
    assert doctor.doctor(blind).healthy


def test_every_warning_comes_with_a_remedy() -> None:
    no_software = {"python": (3, 9, 0), "torch": None, "transformers": None, "missing": ["einops"], "jupyter": False}
    no_room = {"ram_gib": 1.0, "disk_gib": 0.1, "cpus": 1, "card": Card("GPU", 4.0), "tiny_error": "gone"}
    broken = Machine(**no_software, **no_room)
    assert all(check.remedy for check in doctor.doctor(broken) if check.status != "ok")


# ---- how it looks


def test_text_has_a_word_for_each_status_and_needs_no_special_letters() -> None:
    text = str(doctor.doctor(replace(CARDLESS_TORCH, tiny_error="gone")))
    assert "FAIL  tiny model" in text and "warn  NVIDIA card" in text and "\n                  -> gone\n" in text
    assert text.startswith("ok    Python         3.12.0 at .venv/bin/python\n")
    text.encode("ascii")  # consoles of every code page show it
    assert text.splitlines()[-1] == "1 to mend before the notebooks run, 2 to know about."


def test_html_has_words_escapes_and_code_and_keeps_the_colours_of_the_page() -> None:
    page = Report([Check("a<b", "warn", "x & y", "run `make <lab>` now")])._repr_html_()
    assert (
        "a&lt;b" in page and "x &amp; y" in page and "<code>make &lt;lab&gt;</code>" in page and "<b>warn</b>" in page
    )
    assert "background" not in page and page.count("color:") == 1 and "color:inherit" in page


# ---- looking at the real machine


def answer(text: str, code: int = 0):
    return lambda *args, **kwargs: subprocess.CompletedProcess(args, code, stdout=text, stderr="")


def test_the_card_is_found_without_torch() -> None:
    card = find_card(run=answer("Tesla T4, 15360, 550.54\nTesla T4, 15360, 550.54\n"), which=lambda _: "nvidia-smi")
    assert card == Card("Tesla T4", 15.0, "550.54")


@pytest.mark.parametrize("run", [answer("driver not loaded", code=9), answer("what?\n"), answer("")])
def test_a_broken_driver_still_tells_of_a_card(run) -> None:
    assert find_card(run=run, which=lambda _: "nvidia-smi", exists=lambda _: True) == Card("an NVIDIA card")
    assert find_card(run=run, which=lambda _: "nvidia-smi", exists=lambda _: False) is None


def test_a_hanging_driver_does_not_stop_the_doctor() -> None:
    def hang(*args, **kwargs):
        raise subprocess.TimeoutExpired("nvidia-smi", 20)

    assert find_card(run=hang, which=lambda _: "nvidia-smi", exists=lambda _: False) is None


def test_unified_memory_is_reported_as_unknown() -> None:
    assert find_card(run=answer("NVIDIA GB10, [N/A], 580.95\n"), which=lambda _: "x").memory_gib is None


def test_this_machine_can_be_looked_at() -> None:
    machine = _machine.inspect_machine()
    assert machine.python == sys.version_info[:3] and machine.torch and machine.transformers
    assert machine.disk_gib > 0 and machine.cpus >= 1
    assert isinstance(doctor.doctor(machine), Report)


def test_a_torch_that_does_not_load_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str):
        raise OSError("libtorch_cpu.so: cannot open shared object file")

    monkeypatch.setattr(_machine.importlib, "import_module", broken)
    machine = _machine.inspect_machine()
    assert machine.torch is None and "libtorch_cpu" in machine.torch_error
    assert found(machine, "torch").status == "fail"


def test_the_command_prints_and_its_exit_status_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(doctor, "inspect_machine", lambda: LAPTOP)
    assert doctor.main([]) == 0
    assert "Everything works." in capsys.readouterr().out
    monkeypatch.setattr(doctor, "inspect_machine", lambda: replace(LAPTOP, torch=None))
    assert doctor.main([]) == 1


def test_help_is_help_and_what_it_does_not_know_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(doctor, "inspect_machine", lambda: pytest.fail("it looked at the machine"))
    with pytest.raises(SystemExit) as stop:
        doctor.main(["--help"])
    assert stop.value.code == 0 and "usage: python -m grpo_lab.doctor" in capsys.readouterr().out
    assert "--fix is not known here" in refused(doctor.main, "--fix")
