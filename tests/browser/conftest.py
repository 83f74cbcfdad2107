"""Start a JupyterLab that serves a copy of the notebooks, and open a browser page to drive it."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
START_SECONDS = 120
CELL = ".jp-Notebook .jp-Cell"


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a JupyterLab that serves a copy of the notebooks, and yield its address."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(NOTEBOOKS, folder / "notebooks")
    tracker = folder / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    tracker.parent.mkdir(parents=True)
    tracker.write_text('{"windowingMode": "none"}', encoding="utf-8")  # render every cell, not only those in view
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}
    environment |= {"GRPO_LAB_PROFILE": "fast", "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings")}
    environment |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "JUPYTER_PLATFORM_DIRS": "1"}
    options = ["--no-browser", "--allow-root", f"--port={port}", "--IdentityProvider.token=", "--ServerApp.password="]
    options += [f"--ServerApp.root_dir={folder / 'notebooks'}", "--LabApp.expose_app_in_browser=True"]
    options += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    with open(folder / "log", "w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait_for_port(port, server, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:  # the machine is busy
                server.kill()
                server.wait()


def _wait_for_port(port: int, server: subprocess.Popen, log: Path) -> None:
    for _ in range(2 * START_SECONDS):
        assert server.poll() is None, log.read_text(encoding="utf-8")
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise TimeoutError(log.read_text(encoding="utf-8"))


@pytest.fixture
def page(chromium: str, lab: str) -> Iterator:
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=options)
        page = browser.new_page(viewport={"width": 1250, "height": 1000})
        page.set_default_timeout(1000 * START_SECONDS)
        yield page
        browser.close()


def open_notebook(page, lab: str, name: str) -> None:
    page.goto(f"{lab}/doc/tree/{name}.ipynb?reset")
    page.wait_for_selector(CELL)
    page.wait_for_function("document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'")
    page.wait_for_function(
        """() => {
            const panel = window.jupyterapp.shell.currentWidget;
            const shown = panel?.content?.widgets?.length;
            return panel?.context?.isReady && shown > 0 && shown === panel.content.model.cells.length;
        }"""
    )


def assert_no_error(page) -> None:
    """Check that no cell has an error, in the notebook's model, because the page has no folded outputs."""
    problems = page.evaluate(
        "window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells"
        ".flatMap(cell => cell.outputs ?? []).filter(o => o.output_type === 'error').map(o => JSON.stringify(o))"
    )
    assert not problems, problems[0]
