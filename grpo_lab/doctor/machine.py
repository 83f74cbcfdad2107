"""What the doctor looks at, gathered once. Nothing here judges or fails: what cannot be found out is None."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_lab.display import GIB

REPOSITORY = Path(__file__).parents[2]
EXTRAS = {
    "tensorboard": "--report_to tensorboard",
    "wandb": "--report_to wandb",
    "trl": "the comparison `bench --against trl`",
}
COMPILERS = ("cc", "gcc", "clang")  # what triton looks for


@dataclass(frozen=True)
class Card:
    """An NVIDIA card as its driver reports it, whatever torch thinks of it."""

    name: str
    memory_gib: float | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Machine:
    python: tuple[int, int, int] = (3, 12, 0)
    python_path: str = ".venv/bin/python"
    python_command: str = ".venv/bin/python"  # what to type for it, from the repository's folder
    environment: str = "venv"  # "venv", "conda" or "none"
    wrong_venv: str | None = None  # the repository's environment, when this Python is another
    system: str = "Linux"
    torch: str | None = "2.13.0"
    torch_error: str | None = None
    torch_cuda: str | None = None  # the CUDA this torch was built for; None for a CPU build
    cuda_works: bool = False
    hidden_by: str | None = None  # the value of CUDA_VISIBLE_DEVICES, if it hides every card
    card: Card | None = None
    native_bf16: bool = False
    transformers: str | None = "5.17.0"
    installed: bool = True  # grpo_lab itself, so that its requirements are on record
    missing: Sequence[str] = ()
    unfit: Sequence[str] = ()  # "name version (wanted: bounds)"
    extras_missing: Sequence[str] = ()  # of EXTRAS
    compiler: str | None = "gcc"
    jupyter: bool = True
    tiny: str | None = "460,000 parameters"
    tiny_error: str | None = None
    smollm2: str | None = None
    qwen2: str | None = None
    ram_gib: float | None = 16.0
    disk_gib: float = 100.0
    cpus: int = 8
    torch_threads: int | None = 8


def inspect_machine() -> Machine:
    torch, torch_error = _import("torch")
    cuda_works = torch is not None and torch.cuda.is_available()
    seen = torch.cuda.get_device_properties(0) if cuda_works else None
    transformers, _ = _import("transformers")
    tiny, tiny_error, smollm2, qwen2 = _models(transformers)
    installed, missing, unfit = _packages()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return Machine(
        python=sys.version_info[:3],
        python_path=_near(sys.executable),
        python_command=_command(),
        environment=_environment(),
        wrong_venv=_wrong_venv(),
        system=platform.system(),
        torch=getattr(torch, "__version__", None),
        torch_error=torch_error,
        torch_cuda=torch.version.cuda if torch else None,
        cuda_works=cuda_works,
        hidden_by=visible if visible.strip() in ("", "-1") else None,
        card=Card(seen.name, seen.total_memory / GIB) if seen else find_card(),
        native_bf16=cuda_works and torch.cuda.is_bf16_supported(including_emulation=False),
        transformers=getattr(transformers, "__version__", None),
        installed=installed,
        missing=missing,
        unfit=unfit,
        extras_missing=[name for name in EXTRAS if importlib.util.find_spec(name) is None],
        compiler=next((name for name in (os.environ.get("CC"), *COMPILERS) if name and shutil.which(name)), None),
        jupyter=importlib.util.find_spec("ipykernel") is not None,
        tiny=tiny,
        tiny_error=tiny_error,
        smollm2=smollm2,
        qwen2=qwen2,
        ram_gib=_ram(),
        disk_gib=shutil.disk_usage(REPOSITORY).free / GIB,
        cpus=os.cpu_count() or 1,
        torch_threads=torch.get_num_threads() if torch else None,
    )


def find_card(run=subprocess.run, exists=os.path.exists, which=shutil.which) -> Card | None:
    """Ask the driver's own tool, then look for its files: a torch without CUDA must not hide the card."""
    if tool := which("nvidia-smi"):
        query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
        try:
            answer = run(query, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=20)
            if answer.returncode == 0 and answer.stdout.strip():
                name, memory, driver = (part.strip() for part in answer.stdout.splitlines()[0].split(","))
                return Card(name, float(memory) / 1024 if memory.isdigit() else None, driver)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            pass  # a broken driver: the files below still tell that there is a card
    if exists("/proc/driver/nvidia/version") or exists("/dev/nvidia0"):
        return Card("an NVIDIA card")
    return None


def _import(name: str):
    try:
        return importlib.import_module(name), None
    except Exception as error:  # a torch whose libraries do not load raises OSError, a mixed-up one nearly anything
        return None, None if isinstance(error, ModuleNotFoundError) and error.name == name else f"{error}"


def _models(transformers) -> tuple[str | None, str | None, str | None, str | None]:
    """The tiny model and what keeps it from loading; where the two others lie."""
    if transformers is None:
        return None, "transformers does not import", None, None
    try:
        from grpo_lab.models import QWEN2, load_policy, smollm2
        from grpo_lab.models.folders import find_in_caches
        from grpo_lab.models.paths import readable

        with contextlib.redirect_stdout(io.StringIO()):
            found = find_in_caches(QWEN2)
            model, _ = load_policy("tiny", device="cpu")
    except Exception as error:
        return None, f"{error}", None, None
    tiny = f"{sum(p.numel() for p in model.parameters()):,} parameters"
    real = None
    with contextlib.suppress(FileNotFoundError):
        real = readable(smollm2.find())
    return tiny, None, real, readable(found[0]) if found else None


def _packages() -> tuple[bool, list[str], list[str]]:
    """Whether the package is installed; which of its requirements are missing, which outside their bounds."""
    try:
        from packaging.requirements import Requirement

        requirements = [Requirement(line) for line in importlib.metadata.requires("grpo-lab") or []]
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return False, [], []
    missing, unfit = [], []
    for requirement in requirements:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement.name)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            unfit.append(f"{requirement.name} {version} (wanted: {requirement.specifier})")
    return True, missing, unfit


def _environment() -> str:
    if (Path(sys.prefix) / "conda-meta").is_dir():
        return "conda"
    return "venv" if sys.prefix != sys.base_prefix else "none"


def _wrong_venv() -> str | None:
    venv = REPOSITORY / ".venv"
    here = Path(sys.prefix).resolve() == venv.resolve()
    return _near(venv) if venv.is_dir() and not here and _environment() == "none" else None


def _near(path: str | Path) -> str:
    # Not resolved: the python of an environment is a link to the one that it was made from.
    path = Path(path).absolute()
    for root, prefix in ((REPOSITORY, ""), (Path.home(), "~/")):
        if path.is_relative_to(root):
            return prefix + path.relative_to(root).as_posix()
    return path.as_posix()


def _command() -> str:
    python = Path(sys.executable).absolute()
    if python.is_relative_to(REPOSITORY):
        return str(python.relative_to(REPOSITORY))
    return "python" if _environment() != "none" else sys.executable


def _ram() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        psutil, _ = _import("psutil")
        return psutil.virtual_memory().total / GIB if psutil else None
