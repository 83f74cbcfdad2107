"""What every test shares: one torch thread, shapes checked at run time, and the shipped tiny model."""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from unittest import mock

# Set before torch is imported anywhere: several worker processes with a thread pool each get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GRPO_LAB_PROFILE", "fast")
os.environ["GRPO_LAB_LANG"] = "en"  # whatever the machine speaks
# A model in somebody's caches must not decide what a test or a notebook trains. (xdist's workers inherit the folder.)
if "PYTEST_XDIST_WORKER" not in os.environ:
    _caches = tempfile.TemporaryDirectory(prefix="grpo-lab-caches-", ignore_cleanup_errors=True)
    os.environ |= {"HF_HOME": f"{_caches.name}/huggingface", "MODELSCOPE_CACHE": f"{_caches.name}/modelscope"}

import pytest
import torch

torch.set_num_threads(1)
gc.disable()  # until all is imported: nothing of that is garbage, and to look through it again and again takes seconds
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
# With it jsonschema, for nbformat, builds a grammar of addresses in a second and a half; without it, it builds none.
sys.modules.setdefault("rfc3987_syntax", None)


def pytest_configure(config: pytest.Config) -> None:
    """Fix the examples of hypothesis, however busy a machine is; without the long proofs, two fifths of them."""
    if importlib.util.find_spec("hypothesis") is not None:  # the tests of a card do without
        from hypothesis import HealthCheck, settings

        count = 40 if "not slow" in config.option.markexpr else 100
        options = {"deadline": None, "derandomize": True, "database": None, "max_examples": count}
        settings.register_profile("grpo_lab", **options, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("grpo_lab")


def stating_shapes() -> set[str]:
    """The modules with shapes in their signatures; to check all others, too, takes a tenth longer."""
    package = Path(__file__).parents[1] / "grpo_lab"
    files = [path for path in package.rglob("*.py") if "\nfrom jaxtyping " in path.read_text(encoding="utf-8")]
    return {".".join(path.relative_to(package.parent).with_suffix("").parts) for path in files}


SHAPES_CHECKED = importlib.util.find_spec("beartype") is not None
if SHAPES_CHECKED:
    from importlib.machinery import SourceFileLoader

    from jaxtyping import _import_hook, install_import_hook

    # While a module of ours runs, jaxtyping gives all that is imported, torch's compiler and transformers among it, a
    # second bytecode cache: five seconds a process without one. Here it does so only while it reads that module.
    def _code_of(loader, name: str):
        cache = functools.partial(_import_hook._optimized_cache_from_source, loader._typechecker.get_hash())
        with mock.patch("importlib._bootstrap_external.cache_from_source", cache):
            return SourceFileLoader.get_code(loader, name)

    install_import_hook(sorted(stating_shapes()), "beartype.beartype")
    _import_hook._JaxtypingLoader.get_code = _code_of
    _import_hook._JaxtypingLoader.exec_module = SourceFileLoader.exec_module


def pytest_report_header() -> str:
    shapes = "checked at run time (jaxtyping, beartype)" if SHAPES_CHECKED else "NOT checked: beartype is not installed"
    return f"grpo_lab: shapes {shapes}; torch {torch.__version__}, {torch.get_num_threads()} thread a process"


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
    return os.environ.get("GRPO_LAB_CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = {
        "gpu": None if torch.cuda.is_available() else "needs an NVIDIA GPU",
        "browser": None if find_chromium() else "needs Chromium on the PATH, or its path in GRPO_LAB_CHROMIUM",
    }
    for item in items:
        for marker, reason in lacking.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=_turn)


def pytest_collection_finish() -> None:
    """What is imported stays: the garbage collector need not look through it again, a fifth of the processor's time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _turn(item: pytest.Item) -> tuple[int, int]:
    """Long ones first, so that no process is left alone with one at the end: notebooks, then what is marked slow."""
    if item.path.suffix == ".ipynb":
        number = item.path.stem[:2]  # the later ones of the series take longer
        return 0, -int(number) if number.isdigit() else 0
    return (1 if item.get_closest_marker("slow") else 2), 0


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium, for tests that are marked `browser`."""
    return find_chromium()


@pytest.fixture(autouse=True)
def _no_plot_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set per test, never for the whole process: notebook kernels inherit the environment and need their own backend.
    monkeypatch.setenv("MPLBACKEND", "Agg")


@pytest.fixture(scope="session")
def _tiny_loaded():
    from grpo_lab.models import load_policy

    return load_policy("tiny", device="cpu")


@pytest.fixture
def tiny(_tiny_loaded):
    """(model, tokenizer) of the shipped model on the CPU; the model is a copy, so that a test may train it."""
    model, tokenizer = _tiny_loaded
    return copy.deepcopy(model), tokenizer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete random Qwen2; no test changes it."""
    from tests.support.worlds import save_world

    return Path(save_world(tmp_path_factory.mktemp("models") / "random-qwen2"))


@pytest.fixture
def base(checkpoint: Path) -> str:
    """The folder of `checkpoint`, as it is typed."""
    return str(checkpoint)


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Empty caches, no card, and an error for whoever tries to download."""
    import huggingface_hub

    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    real = huggingface_hub.snapshot_download

    def local_only(*args, local_files_only: bool = False, **kwargs):
        assert local_files_only, "a test tried to download"
        return real(*args, local_files_only=True, **kwargs)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", local_only)
    return tmp_path


@pytest.fixture
def no_checker():
    """Calls as a reader makes them: the run-time checker of the tests, which would speak first, is off."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
