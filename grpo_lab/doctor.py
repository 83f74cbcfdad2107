"""Check what works on this machine, and print commands that fix what does not: `python -m grpo_lab.doctor`.

"ok" needs nothing from you, "warn" costs you something, "fail" keeps the notebooks from running. Nothing is changed.
Each check imports the packages that it needs, so that the doctor runs even if packages are missing or broken.
"""

import contextlib
import importlib.metadata
import io
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from grpo_lab.base import Parser, command
from grpo_lab.base.display import GIB, markdown_table
from grpo_lab.base.language import _, fill

ROOT = Path(__file__).parents[1]
PYTHON = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else sys.executable
CONDA = (Path(sys.prefix) / "conda-meta").is_dir()


class CheckResult(NamedTuple):
    """The result of a check."""

    status: str  # "ok", "warn" or "fail"
    finding: str  # description of what the check found
    remedy: str = ""  # advice; "" if there is none

    def __str__(self) -> str:
        # A single line, so that commands can be copied.
        return f"{_(self.finding)} -> {_(self.remedy)}" if self.remedy else _(self.finding)


class Report(dict[str, CheckResult]):
    """The checks by name, readable as text and as a table in a notebook."""

    def count(self, status: str) -> int:
        return sum(check.status == status for check in self.values())

    def summary(self) -> str:
        fail, warn = self.count("fail"), self.count("warn")
        if not fail and not warn:
            return "Everything works."
        return fill("{0} to fix before the notebooks run, {1} to know about.", fail, warn)

    def __repr__(self) -> str:
        rows = [f"{check.status.replace('fail', 'FAIL'):<5} {_(name):<12} {check}" for name, check in self.items()]
        return "\n".join([*rows, "", _(self.summary())])

    def _repr_markdown_(self) -> str:
        rows = [(f"**{check.status}**", _(name), str(check).replace("->", "→")) for name, check in self.items()]
        return f"{markdown_table(('', '', _('what was found → what to do')), rows)}\n\n{_(self.summary())}"


def doctor() -> Report:
    """Run all checks on this machine and return their results by name."""
    report = Report()
    for name, check in CHECKS.items():
        try:
            report[name] = check()
        except Exception as error:  # for instance an ImportError, if a package is missing or broken
            report[name] = CheckResult(
                "fail", f"{type(error).__name__}: {error}", f"Install what is missing: {install_command()}."
            )
    return report


def check_packages() -> CheckResult:
    """Check that the versions of all required packages are within the tested bounds; a missing package raises."""
    from packaging.requirements import Requirement

    untested = []
    for requirement in map(Requirement, importlib.metadata.requires("grpo-lab") or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            version = importlib.metadata.version(requirement.name)
            if not requirement.specifier.contains(version, prereleases=True):
                untested.append(f"{requirement.name} {version} (wanted: {requirement.specifier})")
    if untested:
        return CheckResult("warn", "; ".join(untested), f"Untested with these versions. Go back: {install_command()}.")
    return CheckResult("ok", f"Python {platform.python_version()}, and all packages within the bounds that are tested")


def check_gpu() -> CheckResult:
    """Check the GPU as torch sees it, or else as its driver reports it, since a torch without CUDA sees none."""
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        total, free = (f"{size / GIB:.1f}" for size in (properties.total_memory, torch.cuda.mem_get_info(0)[0]))
        plan = f"`{PYTHON} -m grpo_lab.memory --budget {free}` plans for it."
        return CheckResult("ok", f"{properties.name}, {total} GiB, {free} of them free", plan)
    gpu = find_gpu()
    if gpu is None:
        return CheckResult(
            "ok", "none: everything runs on the CPU; 20 to 40 short steps of a Qwen of 0.5B take up to an hour there"
        )
    uv = f"`{PYTHON} -m uv pip install --python {PYTHON} --reinstall-package torch --torch-backend=auto torch`"
    conda = "`conda install -c conda-forge pytorch-gpu`"
    install_torch = conda if CONDA else f"`{PYTHON} -m pip install uv`, then {uv}"
    if torch.version.cuda is None:
        return CheckResult(
            "warn", f"{gpu} is present, but this torch has no CUDA", f"{install_torch}; then start again."
        )
    problem = f"{gpu} is present, but torch cannot use it: its driver is older than torch's CUDA"
    return CheckResult("warn", problem, f"Update the NVIDIA driver and restart the machine, or: {install_torch}.")


def find_gpu() -> str | None:
    """Return the name and driver of the first GPU, from nvidia-smi; None if there is none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        first_line = subprocess.check_output(query, text=True, timeout=20).splitlines()[0]
        name, _comma, driver = first_line.partition(", ")
        return f"{name} (driver {driver})"
    return None


def check_space() -> CheckResult:
    """Check the free memory and the free disk space."""
    disk = shutil.disk_usage(Path.cwd()).free / GIB
    try:
        import psutil
    except ImportError:
        unknown = f"memory unknown without psutil, {disk:.0f} GiB of disk"
        return CheckResult("warn", unknown, f"Install what is missing: {install_command()}.")
    memory = psutil.virtual_memory()
    free = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB memory free, {disk:.0f} GiB of disk"
    if memory.total < 3.5 * GIB:
        return CheckResult("warn", free, "Little memory: close other programs, and run one notebook at a time.")
    return CheckResult("ok", free)


def check_allocator() -> CheckResult:
    """Report whether the process keeps the memory of freed tensors, which makes a real model faster on a CPU."""
    from grpo_lab.base.process_state import is_set_by_environment, uses_glibc

    if not uses_glibc():
        return CheckResult("ok", "not glibc: left as it is")
    if is_set_by_environment():
        return CheckResult("ok", "glibc, as environment variables set it")
    return CheckResult("ok", "glibc: once a real model is loaded on the CPU, freed memory stays with the process")


def check_tiny() -> CheckResult:
    """Load the tiny model."""
    from grpo_lab.models import load_policy

    with contextlib.redirect_stdout(io.StringIO()):
        load_policy("tiny", device="cpu")
    return CheckResult("ok", "loads")


def check_models() -> CheckResult:
    """List the models on this machine: those fetched from packages, and Qwen2-0.5B-Instruct in the hubs' caches."""
    from grpo_lab.models.folders import QWEN2, find_in_caches
    from grpo_lab.models.packaged import PACKAGED

    with contextlib.redirect_stdout(io.StringIO()):
        cached = find_in_caches(QWEN2)
    present = [f"{model.name} ({model.weights_source})" for model in PACKAGED.values() if model.is_converted]
    present += [f"auto ({cached.reason})"] if cached else []
    missing = [model for model in PACKAGED.values() if not model.is_converted]
    remedies = [f"`{PYTHON} -m grpo_lab.models get {model.name}` fetches {model.download_size}" for model in missing]
    return CheckResult("ok", "; ".join(present) or "none but the tiny one", "; ".join(remedies))


def check_sandbox() -> CheckResult:
    """Check that there is a sandbox for code that models and students write. No lesson needs one."""
    from grpo_lab.sandbox.isolation import available_sandbox

    sandbox, reason = available_sandbox()
    if sandbox:
        return CheckResult(
            "ok", f"{sandbox}, where `--tools python`, the rewards code and pass_rate, and grading run programs"
        )
    message = (
        f"none ({reason}), so `--tools python` and the rewards code and pass_rate are refused, grading needs --trust"
    )
    if shutil.which("bwrap"):
        return CheckResult("warn", message, "bubblewrap needs user namespaces: see docs/teaching-walls.md.")
    if sys.platform == "linux":
        return CheckResult("ok", message, "If you want these: `apt install bubblewrap` or `dnf install bubblewrap`.")
    return CheckResult(
        "ok", message, "If you want these: install Docker, then `docker build -t grpo-lab-grade .` here."
    )


def install_command() -> str:
    """Return the command that installs what the course needs."""
    if CONDA:
        return "`conda env update -f environment.yml`"
    packages = "-r requirements.lock" if (ROOT / "requirements.lock").is_file() else "grpo-lab[notebooks]"
    return f"`{PYTHON} -m pip install {packages}`"


CHECKS = {
    "packages": check_packages,
    "NVIDIA GPU": check_gpu,
    "machine": check_space,
    "allocator": check_allocator,
    "tiny model": check_tiny,
    "real models": check_models,
    "sandbox": check_sandbox,
}


@command("grpo_lab.doctor")
def main(arguments: list[str] | None = None) -> int:
    Parser(prog="python -m grpo_lab.doctor", description=__doc__).parse_args(arguments)
    report = doctor()
    print(report)
    return 1 if report.count("fail") else 0


if __name__ == "__main__":
    sys.exit(main())
