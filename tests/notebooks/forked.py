"""Run each notebook in a fork of a process that has imported all packages: `pytest -p tests.notebooks.forked`.

This saves each notebook about ten seconds of imports in its own kernel. As under nbmake, a notebook fails if a cell
raises or takes more than CELL_SECONDS. The plugin is for Linux; on other systems, and in `make test-all`, nbmake runs
the notebooks.
"""

import functools
import gc
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

CELL_SECONDS = 300
SHOWN_LINES = 60  # number of last lines that are shown of a failed notebook
DOTS_PER_INCH = 50  # resolution of figures: 200 for readers, and half of the time of drawing goes into pixels
INLINE = "module://matplotlib_inline.backend_inline"
NEEDED = ("IPython.core.interactiveshell", "ipywidgets", "matplotlib.pyplot", "transformers")
NEEDED += ("grpo_lab.teaching.notebook",)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return NotebookFile.from_parent(parent, path=file_path) if file_path.suffix == ".ipynb" else None


class NotebookFile(pytest.File):
    def collect(self):
        yield Notebook.from_parent(self, name=self.path.name)


class NotebookFailed(Exception):
    """Raised with the last lines that the notebook printed: the number of the cell and the traceback."""


class Notebook(pytest.Item):
    def runtest(self) -> None:
        warm_up()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            child = multiprocessing.get_context("fork").Process(target=execute, args=(self.path, Path(folder)))
            child.start()
            child.join()
            printed = (Path(folder) / "printed").read_text(encoding="utf-8", errors="replace").splitlines()
        if child.exitcode:
            raise NotebookFailed("\n".join([*printed[-SHOWN_LINES:], f"{self.name}: exit code {child.exitcode}"]))

    def repr_failure(self, excinfo):
        return str(excinfo.value) if excinfo.errisinstance(NotebookFailed) else super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, None, self.name


@functools.cache
def warm_up() -> None:
    """Import all that notebooks need, before the first fork: some of it only a first model and a first step import."""
    for module in NEEDED:
        import_module(module)
    import torch

    from grpo_lab.models import load_policy

    model, _ = load_policy("tiny", device="cpu")
    torch.optim.AdamW(model.parameters()).step()
    gc.collect()
    gc.freeze()  # imported objects are no garbage: looking for some among them takes time in each notebook


def execute(path: Path, folder: Path) -> None:
    """Run every code cell in a shell without a kernel, in the child process; temporary files are in `folder`."""
    sys.stdout = sys.stderr = open(folder / "printed", "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    for stream in (1, 2):
        os.dup2(sys.stdout.fileno(), stream)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    shell = make_shell()
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            print(f"---- {path.name}, cell {number}")
            signal.alarm(CELL_SECONDS)  # the signal has no handler, so it ends the process
            if not shell.run_cell("".join(cell["source"]), store_history=True).success:
                sys.exit(1)
    signal.alarm(0)


def make_shell():
    """Make a shell like a kernel's: figures are rendered after the cell, and run-time checks of shapes are off."""
    import jaxtyping
    from IPython.core.interactiveshell import InteractiveShell
    from matplotlib import pyplot
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib_inline.backend_inline import configure_inline_support
    from traitlets.config import Config

    from grpo_lab.teaching.plots import style

    jaxtyping.config.update("jaxtyping_disable", True)
    gif = style._gif  # draws the first and the last frame only, to save time
    style._gif = lambda draw, name, values, ylabel: gif(draw, name, [values[0], values[-1]], ylabel)
    style.DPI = DOTS_PER_INCH
    ConstrainedLayoutEngine.execute = lambda engine, figure: None  # skipped, to save time
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}), colors="nocolor")
    pyplot.switch_backend(INLINE)
    configure_inline_support(shell, INLINE)
    return shell
