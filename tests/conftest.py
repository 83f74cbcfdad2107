"""Configure all tests: one torch thread, shapes checked at run time, and fixtures with small models."""

from __future__ import annotations

import ast
import copy
import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from unittest import mock

# Set before torch is imported, because worker processes with a thread pool each slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GRPO_LAB_PROFILE", "fast")
os.environ["GRPO_LAB_LANG"] = "en"  # the tests compare English texts, independent of the machine's language
# Empty caches, so that a model on the machine changes no test or notebook. xdist's workers inherit the folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _caches = tempfile.TemporaryDirectory(prefix="grpo-lab-caches-", ignore_cleanup_errors=True)
    os.environ |= {"HF_HOME": f"{_caches.name}/huggingface", "MODELSCOPE_CACHE": f"{_caches.name}/modelscope"}

import pytest

gc.disable()  # enabled again after all imports: modules are no garbage, and collecting among them takes seconds
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background job; some tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Hidden from jsonschema (used by nbformat), which would build a grammar with this package in 1.5 seconds.
sys.modules.setdefault("rfc3987_syntax", None)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare torch and hypothesis, except in the process that only hands out the tests to those of xdist."""
    if not getattr(config.option, "numprocesses", None):
        _prepare_torch()
        _prepare_hypothesis(config)


def _prepare_torch() -> None:
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        # Else torch keeps every seed for a later device, each with the whole stack as text, which is long under pytest.
        for device in (torch.cuda, torch.xpu, torch.mtia):
            device.manual_seed_all = lambda seed: None


def _prepare_hypothesis(config: pytest.Config) -> None:
    """Make hypothesis deterministic and without deadlines: 100 examples, or 40 if slow tests are deselected."""
    if importlib.util.find_spec("hypothesis") is not None:  # the tests of a GPU do not need it
        from hypothesis import HealthCheck, settings

        count = 40 if "not slow" in config.option.markexpr else 100
        options = {"deadline": None, "derandomize": True, "database": None, "max_examples": count}
        settings.register_profile("grpo_lab", **options, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("grpo_lab")


def modules_with_shapes() -> set[str]:
    """Return the modules with shapes in their signatures."""
    package = Path(__file__).parents[1] / "grpo_lab"
    files = [path for path in package.rglob("*.py") if "\nfrom jaxtyping " in path.read_text(encoding="utf-8")]
    return {".".join(path.relative_to(package.parent).with_suffix("").parts) for path in files}


SHAPES_CHECKED = importlib.util.find_spec("beartype") is not None
if SHAPES_CHECKED:
    from importlib.machinery import SourceFileLoader

    import jaxtyping
    from jaxtyping import _import_hook, install_import_hook

    CHECKS_SHAPES = "__import__('tests.support.shape_checks', fromlist=['']).checks_shapes"

    class SignaturesWithShapes(_import_hook.JaxtypingTransformer):
        """Has the functions and dataclasses checked whose annotations have shapes.

        jaxtyping would decorate all functions of a module, and check each argument twice. mypy checks the types of the
        others, and a third of the calls are left.
        """

        def visit_FunctionDef(self, node: ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if has_shape([node.returns, *(argument.annotation for argument in arguments)]):
                decorator = ast.parse(CHECKS_SHAPES, mode="eval").body
                for part in ast.walk(decorator):
                    ast.copy_location(part, node)
                node.decorator_list.append(decorator)
            return self.generic_visit(node) or node

        def visit_ClassDef(self, node: ast.ClassDef):
            fields = [member.annotation for member in node.body if isinstance(member, ast.AnnAssign)]
            return super().visit_ClassDef(node) if has_shape(fields) else self.generic_visit(node) or node

    def has_shape(annotations: list[ast.expr | None]) -> bool:
        """Return whether a type such as `Float[Tensor, "B T"]` is in one of the annotations."""
        parts = [part for annotation in annotations if annotation is not None for part in ast.walk(annotation)]
        return any(
            isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and hasattr(jaxtyping, part.value.id)
            for part in parts
        )

    # jaxtyping switches to a bytecode cache of its own while it executes a module, so all modules imported from there
    # (transformers, torch's compiler) are compiled again, for five seconds per process. This loader switches to that
    # cache only while it reads the module itself.
    def _code_of(loader, name: str):
        tag = f"{loader._typechecker.get_hash()}signaturesonce"
        cache = functools.partial(_import_hook._optimized_cache_from_source, tag)
        with mock.patch("importlib._bootstrap_external.cache_from_source", cache):
            return SourceFileLoader.get_code(loader, name)

    _import_hook.JaxtypingTransformer = SignaturesWithShapes
    install_import_hook(sorted(modules_with_shapes()), "beartype.beartype")
    _import_hook._JaxtypingLoader.get_code = _code_of
    _import_hook._JaxtypingLoader.exec_module = SourceFileLoader.exec_module


def pytest_report_header() -> str:
    shapes = "checked at run time (jaxtyping, beartype)" if SHAPES_CHECKED else "NOT checked: beartype is not installed"
    return f"grpo_lab: shapes {shapes}; torch {importlib.metadata.version('torch')}, 1 thread a process"


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
    return os.environ.get("GRPO_LAB_CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    lacking = {
        "gpu": None if torch.cuda.is_available() else "needs an NVIDIA GPU",
        "browser": None if find_chromium() else "needs Chromium on the PATH, or its path in GRPO_LAB_CHROMIUM",
    }
    for item in items:
        for marker, reason in lacking.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=_order)


def _save_equal_configs_alike(config_class: type) -> None:
    """Let transformers compute once for equal configs what it saves of them.

    It makes two default configs for it and checks each of their values, a seventh of the time of a test that trains.
    """
    compute, differences = config_class.to_diff_dict, {}

    def to_diff_dict(config) -> dict:
        key = type(config), json.dumps(config.to_dict(), default=repr, sort_keys=True)
        if key not in differences:
            differences[key] = compute(config)
        return copy.deepcopy(differences[key])

    config_class.to_diff_dict = to_diff_dict


def pytest_collection_finish() -> None:
    """Exclude all imported objects from garbage collection, which saves a fifth of the CPU time."""
    if "transformers.configuration_utils" in sys.modules:
        _save_equal_configs_alike(sys.modules["transformers.configuration_utils"].PreTrainedConfig)
    gc.collect()
    gc.freeze()
    gc.enable()


def _order(item: pytest.Item) -> tuple[int, int]:
    """Sort notebooks first, then slow tests, so that no process is busy with a long one when the others are done."""
    if item.path.suffix == ".ipynb":
        number = item.path.stem[:2]  # later lessons take longer, so they come first, and further.ipynb before all
        return 0, -int(number) if number.isdigit() else -100
    return (1 if item.get_closest_marker("slow") else 2), 0


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of Chromium, for tests that are marked `browser`."""
    return find_chromium()


@pytest.fixture(autouse=True)
def _no_plot_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set per test and not for the process, because notebook kernels inherit the environment and need their own backend.
    monkeypatch.setenv("MPLBACKEND", "Agg")


@pytest.fixture(autouse=True)
def _no_user_formulas_left():
    """Remove the losses and advantages of a user that a test has registered, such as my_loss.py:clip."""
    yield
    if user_formulas := sys.modules.get("grpo_lab.config.user_formulas"):
        for table in user_formulas.FORMULA_TABLES.values():
            for name in filter(user_formulas.is_user_formula, list(table)):
                del table[name]


@pytest.fixture(scope="session")
def _tiny_loaded():
    from grpo_lab.models import load_policy

    return load_policy("tiny", device="cpu")


@pytest.fixture
def tiny(_tiny_loaded):
    """Return the tiny model, as a copy that a test may train, and its tokenizer."""
    model, tokenizer = _tiny_loaded
    return copy.deepcopy(model), tokenizer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the checkpoint of a small random Qwen2, which no test changes."""
    from tests.support.small_policy import save_policy

    return Path(save_policy(tmp_path_factory.mktemp("models") / "random-qwen2"))


@pytest.fixture
def checkpoint_name(checkpoint: Path) -> str:
    """Return the folder of `checkpoint` as text, for command lines."""
    return str(checkpoint)


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make the machine one with empty caches and no GPU, and let downloads fail; return the folder of the caches."""
    import huggingface_hub

    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    real = huggingface_hub.snapshot_download

    def local_only(*args, local_files_only: bool = False, **kwargs):
        assert local_files_only, "a test tried to download"
        return real(*args, local_files_only=True, **kwargs)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", local_only)
    return tmp_path


@pytest.fixture
def no_checker():
    """Switch the run-time checker of shapes off, so that the package's own error messages are tested."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
